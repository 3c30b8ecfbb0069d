"""Numba kernels against the plain learner: one update, values, acting, Q-learning; and whole compiled segments."""

from __future__ import annotations

import copy
import itertools
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("numba")

from runnel.agents.dqn import DQNConfig, DQNLearner
from runnel.agents.ppo import PPOConfig, PPOLearner
from runnel.core.errors import NonFiniteError
from runnel.core.records import Batch, trim
from runnel.core.spaces import ActionSpec, ArraySpec, EnvSpec
from runnel.core.trajectories import trajectory_stream
from runnel.envs.device import CartPole, TensorVector
from runnel.kernels.select import Accelerator
from runnel.kernels.small.acting import FastActorCritic
from runnel.kernels.small.numba.ppo import CHUNK, NumbaActorCritic
from runnel.nets.actor_critic import ActorCritic, build_body
from runnel.nets.layers import NetConfig

DISCRETE = ActionSpec("discrete", num_actions=3)
BOX = ActionSpec("continuous", shape=(2,), low=(-1.0,) * 2, high=(1.0,) * 2)
KINDS = {
    "discrete": EnvSpec({"obs": ArraySpec((5,))}, DISCRETE),
    "masked": EnvSpec({"obs": ArraySpec((5,))}, DISCRETE, has_mask=True),
    "box": EnvSpec({"obs": ArraySpec((5,))}, BOX),
    "leaves": EnvSpec({"obs/a": ArraySpec((2, 2)), "obs/b": ArraySpec((3,))}, DISCRETE),
}


def make_net(kind: str, *, activation: str = "tanh", normalise: bool = False) -> ActorCritic:
    spec = KINDS[kind]
    body = build_body(spec, NetConfig(hidden=(24, 16), activation=activation), seed=3)  # type: ignore[arg-type]
    return ActorCritic(spec, body, normalise_obs=normalise)


def make_batch(kind: str, num: int, *, seed: int = 0) -> Batch:
    g, spec = torch.Generator().manual_seed(seed), KINDS[kind]
    batch = Batch({k: torch.randn(num, *leaf.shape, generator=g) for k, leaf in spec.obs.items()})
    for key in ("advantage", "return", "value"):
        batch[key] = torch.randn(num, generator=g)
    batch["logprob"] = -1.0 + 0.4 * torch.randn(num, generator=g)
    batch["action"] = torch.randint(0, 3, (num,), generator=g) if spec.action is DISCRETE else torch.randn(num, 2, generator=g)
    if spec.has_mask:
        mask = torch.rand(num, 3, generator=g) > 0.3
        batch["action_mask"] = mask.scatter(1, batch["action"].unsqueeze(1), True)
    return batch


def by_kernels(learner: Any) -> Any:
    made = Accelerator("on").learner(learner)
    assert made.on, made.text
    assert "numba" in made.text
    return made.learner


def learners(kind: str, config: PPOConfig, **more: Any) -> tuple[PPOLearner, PPOLearner]:
    """One with kernels, and a plain one."""
    ours, plain = (PPOLearner(config, make_net(kind, **more), seed=1) for _ in range(2))
    return by_kernels(ours), plain


def kernels_of(learner: PPOLearner) -> NumbaActorCritic:
    kernels: NumbaActorCritic = learner.value.__self__  # type: ignore[attr-defined]
    assert isinstance(kernels, NumbaActorCritic)
    return kernels


def fast(net: ActorCritic) -> FastActorCritic:
    acts = Accelerator("on").acts(net)
    assert isinstance(acts, FastActorCritic)
    return acts


def compiled(acts: FastActorCritic) -> bool:
    """Whether kernels act, and not numpy."""
    return acts.row_policy() is not None


def same_weights(a: torch.nn.Module, b: torch.nn.Module, tolerance: float = 2e-5) -> None:
    for x, y in zip(a.parameters(), b.parameters(), strict=True):
        torch.testing.assert_close(x, y, atol=tolerance, rtol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("dual_clip", "value_clip", "entropy_coef"), itertools.product([None, 1.5], [None, 0.3], [0.0, 0.02]))
def test_an_update_is_the_plain_one(kind: str, dual_clip: float | None, value_clip: float | None, entropy_coef: float) -> None:
    config = PPOConfig(num_epochs=2, dual_clip=dual_clip, value_clip=value_clip, entropy_coef=entropy_coef, lr=1e-3)
    ours, plain = learners(kind, config)
    found, expected = (learner.update(make_batch(kind, 96)).metrics for learner in (ours, plain))
    same_weights(ours.net, plain.net)
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert found[key] == pytest.approx(value, rel=2e-3, abs=2e-5), key


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("normalise", [False, True])
def test_several_updates_stay_together(activation: str, normalise: bool) -> None:
    ours, plain = learners("discrete", PPOConfig(lr=1e-3), activation=activation, normalise=normalise)
    for i in range(4):
        batch = make_batch("discrete", 64, seed=i)
        ours.update(batch)
        plain.update(batch)
    same_weights(ours.net, plain.net, 2e-4)
    for a, b in zip(ours.net.buffers(), plain.net.buffers(), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("threads", [1, 2])
def test_minibatches_of_several_chunks_do_not_depend_on_threads(threads: int) -> None:
    before, num = torch.get_num_threads(), 4 * (4 * CHUNK + 100)
    torch.set_num_threads(threads)
    try:
        ours, plain = learners("box", PPOConfig(num_epochs=1, lr=1e-3))
        assert kernels_of(ours)._workers(num // 4) == threads
        batch = make_batch("box", num)
        ours.update(batch)
        plain.update(batch)
        same_weights(ours.net, plain.net)
        alone, _ = learners("box", PPOConfig(num_epochs=1, lr=1e-3))
        torch.set_num_threads(1)
        alone.update(batch)
        for a, b in zip(ours.net.parameters(), alone.net.parameters(), strict=True):
            assert torch.equal(a, b)
    finally:
        torch.set_num_threads(before)


def test_a_bad_loss_changes_nothing_and_is_named() -> None:
    ours, _ = learners("discrete", PPOConfig())
    batch, before = make_batch("discrete", 64), copy.deepcopy(ours.net.state_dict())
    batch["advantage"][:] = float("nan")
    with pytest.raises(NonFiniteError, match="rewards/env"):
        ours.update(batch)
    for key, value in ours.net.state_dict().items():
        assert torch.equal(value, before[key])


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num", [64, 2500])
def test_values_and_actions_are_the_plain_ones(kind: str, activation: str, num: int) -> None:
    """Few rows act one by one, many in chunks of 1,024."""
    ours, plain = learners(kind, PPOConfig(), activation=activation)
    rows = make_batch(kind, num)
    with torch.no_grad():
        torch.testing.assert_close(ours.value(rows), plain.value(rows), atol=1e-5, rtol=1e-4)
        noise = torch.rand(num, ours.net.noise_size, generator=torch.Generator().manual_seed(1)).clamp(min=1e-6)
        acts = fast(ours.net)
        assert compiled(acts) == (kind != "leaves"), "environments hand over one plain vector"
        found, expected = (net.act(Batch(rows | {"noise": noise})) for net in (acts, plain.net))
    torch.testing.assert_close(found["logprob"], expected["logprob"], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(found["action"], expected["action"], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("num", [8, 200])
def test_noise_at_its_ends_never_picks_a_masked_action(num: int) -> None:
    ours, _ = learners("masked", PPOConfig())
    acts, rows = fast(ours.net), make_batch("masked", num)
    assert compiled(acts)
    rows["action_mask"][:] = torch.tensor([False, True, False])
    for u in (2.0**-25, 0.5, 1.0 - 2.0**-24, 1.0):
        with torch.no_grad():
            answer = acts.act(Batch(rows | {"noise": torch.full((num, 1), u)}))
        assert answer["action"].tolist() == [1] * num
        assert answer["logprob"].tolist() == pytest.approx([0.0] * num, abs=1e-6)


def test_kernels_follow_weights_that_moved() -> None:
    ours, _ = learners("discrete", PPOConfig())
    other = make_net("discrete")
    acts, rows = fast(other), Batch(make_batch("discrete", 8) | {"noise": torch.rand(8, 1)})
    other.load_state_dict({k: v.clone() for k, v in ours.net.state_dict().items()}, assign=True)
    assert not compiled(acts), "weights that do not lie in one vector are numpy's"
    other.load_state_dict(ours.params(), assign=True)
    assert compiled(acts)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(acts.act(rows)["logprob"], ours.net.act(rows)["logprob"], atol=1e-5, rtol=1e-4)
            ours.update(make_batch("discrete", 64))


UNIFORM = pytest.approx([-np.log(3.0)] * 4)
"""Log-probabilities of four rows by a network of zeros."""


def zero(net: ActorCritic) -> None:
    with torch.no_grad():
        for weight in net.parameters():
            weight.zero_()


def test_a_copy_of_a_network_has_weights_of_its_own() -> None:
    ours, _ = learners("discrete", PPOConfig())
    acts, rows = fast(ours.net), Batch(make_batch("discrete", 4) | {"noise": torch.full((4, 1), 0.5)})
    with torch.no_grad():
        assert compiled(acts)
        assert acts.act(rows)["logprob"].tolist() != UNIFORM
        twin = copy.deepcopy(ours.net)
        zero(twin)
        assert not compiled(fast(twin)), "its weights do not lie in one vector"
        assert fast(twin).act(rows)["logprob"].tolist() == UNIFORM
        assert twin.value(rows).abs().max() == 0.0
        assert acts.act(rows)["logprob"].tolist() != UNIFORM


def test_a_new_optimiser_never_leaves_old_weights_behind() -> None:
    ours, _ = learners("discrete", PPOConfig())
    acts, rows = fast(ours.net), Batch(make_batch("discrete", 4) | {"noise": torch.full((4, 1), 0.5)})
    with torch.no_grad():
        assert acts.act(rows)["logprob"].tolist() != UNIFORM
    again = by_kernels(PPOLearner(PPOConfig(), ours.net, seed=1))  # its optimiser gives the weights another address
    assert kernels_of(again) is not kernels_of(ours)
    zero(again.net)
    with torch.no_grad():
        assert again.value(rows).abs().max() == 0.0
        assert acts.act(rows)["logprob"].tolist() == UNIFORM
    assert compiled(acts)


# ------------------------------------------------------------------------------------------------------------ Q-learning
def q_learner(*, double: bool, spec: EnvSpec, huber: float | None = 1.0, activation: str = "relu") -> DQNLearner:
    config = DQNConfig(double=double, target_every=3, huber=huber)
    return DQNLearner(config, config.network(spec, NetConfig(hidden=(20, 12), activation=activation), seed=1))  # type: ignore[arg-type]


def q_batch(g: torch.Generator, *, masked: bool, num: int = 32) -> Batch:
    batch = Batch({k: torch.randn(num, 5, generator=g) for k in ("obs", "next_obs")})
    batch["action"], batch["index"] = torch.randint(3, (num,), generator=g), torch.arange(num)
    batch["discount"], batch["weight"] = torch.full((num,), 0.9), torch.rand(num, generator=g)
    batch["rewards/env"] = 3.0 * torch.randn(num, generator=g)
    if masked:
        batch["next_action_mask"] = (torch.rand(num, 3, generator=g) > 0.5).index_fill(1, torch.tensor([1]), True)
    return batch


@pytest.mark.parametrize("huber", [1.0, None])
@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("kind", ["discrete", "masked"])
def test_updates_of_q_are_the_plain_ones(kind: str, double: bool, huber: float | None) -> None:
    ours, plain = (q_learner(double=double, spec=KINDS[kind], huber=huber) for _ in range(2))
    by_kernels(ours)
    g = torch.Generator().manual_seed(0)
    for _ in range(8):
        batch = q_batch(g, masked=kind == "masked")
        found, expected = ours.update(batch), plain.update(batch)
        assert found.metrics.keys() == expected.metrics.keys()
        for key, value in expected.metrics.items():
            assert found.metrics[key] == pytest.approx(value, rel=1e-3, abs=1e-5), key
    same_weights(ours.net, plain.net)


def test_priorities_of_q_are_the_plain_ones() -> None:
    ours, plain = (q_learner(double=True, spec=KINDS["discrete"]) for _ in range(2))
    by_kernels(ours)
    batch = q_batch(torch.Generator().manual_seed(0), masked=False)
    torch.testing.assert_close(ours.step(batch)[1], plain.step(batch)[1], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("kind", ["discrete", "masked"])
def test_the_best_action_is_the_plain_one(kind: str, activation: str) -> None:
    ours, plain = (q_learner(double=True, spec=KINDS[kind], activation=activation).net for _ in range(2))
    for num in (50, 200):  # few rows by kernels, more by numpy
        rows = make_batch(kind, num)
        assert torch.equal(
            Accelerator("on").acts(ours).act(rows, greedy=True)["action"], plain.act(rows, greedy=True)["action"]
        )


def test_a_bad_q_batch_changes_nothing() -> None:
    ours = by_kernels(q_learner(double=True, spec=KINDS["discrete"]))
    before, batch = copy.deepcopy(ours.net.state_dict()), q_batch(torch.Generator().manual_seed(0), masked=False)
    batch["rewards/env"][3] = float("inf")
    with pytest.raises(NonFiniteError, match="rewards/env"):
        ours.update(batch)
    for key, value in ours.net.state_dict().items():
        assert torch.equal(value, before[key])


# -------------------------------------------------------------------------------------------------------------- segments
def played(*, by_rows: bool, num_segments: int) -> tuple[list[Batch], list[Any], Any]:
    """Segments of CartPole by one network (compiled with its environments, or plain), its episodes, what is saved."""
    spec = CartPole().spec
    learner = PPOLearner(PPOConfig(), ActorCritic(spec, build_body(spec, NetConfig(hidden=(24, 16)), seed=3)), seed=1)
    acts = fast(learner.net)
    vector = TensorVector(CartPole(), 8, seed=5)
    vector.reset()
    stream, g = trajectory_stream(spec, num_steps=96, num_envs=8), torch.Generator().manual_seed(2)
    segments, noise = [], torch.zeros(96, 8, 1)
    for _ in range(num_segments):
        arrays = stream.allocate()
        noise.uniform_(generator=g).clamp_(min=1e-6)
        with torch.no_grad():
            done = vector.play(arrays, learner.net.act, noise, acts.row_policy() if by_rows else None)
        segments.append(trim(stream, arrays, {"F": done.num_final}))
    return segments, vector.episodes(), vector.snapshot()["engine"]


def test_compiled_segments_are_the_plain_ones() -> None:
    ours, theirs = (played(by_rows=by_rows, num_segments=5) for by_rows in (True, False))
    for a, b in zip(ours[0], theirs[0], strict=True):
        for key in ("action", "terminated", "truncated", "final_index", "rewards/env"):
            assert torch.equal(a[key], b[key]), key
        for key in ("obs", "final_obs", "logprob"):
            torch.testing.assert_close(a[key], b[key], atol=2e-3, rtol=1e-3)
    assert len(ours[1]) > 20
    assert [(e.env, e.total, e.length) for e in ours[1]] == [(e.env, e.total, e.length) for e in theirs[1]]
    for key in ("clock", "used"):
        assert ours[2][key] == theirs[2][key], key
    assert (ours[2]["deadline"] == theirs[2]["deadline"]).all()


class Moon(CartPole):
    """Another world under the same name."""

    gravity = 1.6


def test_an_environment_that_derives_from_a_compiled_one_is_played_by_its_own_rules() -> None:
    assert TensorVector(CartPole(), 8, seed=0)._engine.compiles  # type: ignore[union-attr]
    assert not TensorVector(Moon(), 8, seed=0)._engine.compiles  # type: ignore[union-attr]


def test_the_threads_of_blas_are_given_back() -> None:
    from runnel.kernels.small.numba.ppo import _blas, one_blas_thread

    libraries = _blas()
    assert libraries
    before = [library.get_num_threads() for library in libraries]
    try:
        for library in libraries:
            library.set_num_threads(2)
        with one_blas_thread():
            assert [library.get_num_threads() for library in libraries] == [1] * len(libraries)
        ours, _ = learners("discrete", PPOConfig(num_epochs=1))
        ours.update(make_batch("discrete", 64))
        assert [library.get_num_threads() for library in libraries] == [2] * len(libraries)
    finally:
        for library, num in zip(libraries, before, strict=True):
            library.set_num_threads(num)


def test_machine_code_older_than_a_source_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from runnel.kernels.jit import forget_older

    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    kernels, source, cache = tmp_path / "kernels.py", tmp_path / "source.py", tmp_path / "__pycache__"
    cache.mkdir()
    names = ("kernels.step-1.py311.nbi", "kernels.act-9.py311.nbi", "others.step-1.py311.nbi")
    for path in (kernels, source, *(cache / name for name in names)):
        path.touch()
    for path, time in ((cache / names[0], 100), (cache / names[1], 300), (cache / names[2], 100), (source, 200)):
        os.utime(path, (time, time))
    forget_older(str(kernels), str(source))
    assert sorted(path.name for path in cache.iterdir()) == sorted(names[1:])


def test_tanh_is_tanh() -> None:
    from runnel.kernels.small.numba.rows import tanh

    xs = np.linspace(-12.0, 12.0, 4001, dtype=np.float32)
    assert max(abs(float(tanh(x)) - np.tanh(float(x))) for x in xs) < 1e-6

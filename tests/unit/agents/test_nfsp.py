"""Neural fictitious self-play: who plays an episode, what both memories get, and what both networks learn."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from made_ranks import together
from made_segments import MASKED, make_segment

from runnel.agents.nfsp import NFSPConfig, NFSPLearner
from runnel.core.contracts.learning import Collective, SingleProcess
from runnel.core.errors import ConfigError
from runnel.core.records import Batch, FieldSpec, Segment
from runnel.core.rng import make_rng
from runnel.core.trajectories import ACTIVE
from runnel.nets.layers import NetConfig
from runnel.nets.nfsp import AVERAGE, BEST, BY_BEST, MODE

NET = NetConfig(hidden=(16,), activation="relu")
CONFIG = NFSPConfig(min_fill=4, num_updates=3, batch_size=8, policy_batch_size=8, replay_size=100, reservoir_size=100)


def learner(config: NFSPConfig = CONFIG, ranks: Collective | None = None) -> NFSPLearner:
    return NFSPLearner(config, config.nets(MASKED, NET, seed=1), seed=1, collective=ranks)


def turns(seed: int = 0) -> Segment:
    """A segment in which rows wait and end, and which says who decided."""
    made, rng = make_segment(seed, spec=MASKED, num_steps=12, carried=False), make_rng(seed, "turns")
    fields = {**made.spec.fields, ACTIVE: FieldSpec(("T1", "B"), torch.bool), BY_BEST: FieldSpec(("T", "B"), torch.bool)}
    arrays = type(made.arrays)(made.arrays)
    arrays[ACTIVE] = torch.from_numpy(rng.random((13, 4)) < 0.6)
    arrays[BY_BEST] = torch.from_numpy(rng.random((12, 4)) < 0.5)
    arrays["action_mask"] = torch.from_numpy(rng.random(arrays["action_mask"].shape) < 0.7)
    arrays["action_mask"][..., 0] |= ~arrays["action_mask"].any(-1)
    mine = arrays["action_mask"][:-1].gather(2, arrays["action"].unsqueeze(2)).squeeze(2)
    arrays["action"] = torch.where(mine, arrays["action"], 1 - arrays["action"])  # whoever acts does what is allowed
    arrays["final_action_mask"] = torch.ones(len(arrays["final_index"]), 2, dtype=torch.bool)
    return Segment(0, replace(made.spec, fields=fields), made.header, arrays)


# ------------------------------------------------------------------------------------------------------------- who plays
def test_one_policy_plays_an_episode_to_its_end() -> None:
    """Who plays is drawn once, with probability `anticipation`; then noise changes it no more."""
    net = CONFIG.nets(MASKED, NET, seed=1)
    net.anticipation.fill_(0.25)
    num, rng = 4000, np.random.default_rng(0)
    obs, mask = torch.zeros(num, 3), torch.ones(num, 2, dtype=torch.bool)
    state = torch.zeros(num, dtype=torch.int64)
    modes = []
    for _ in range(3):
        noise = torch.from_numpy(rng.random((num, net.noise_size), dtype=np.float32))
        reply = net.act(Batch({"obs": obs, "action_mask": mask, "noise": noise, MODE: state}))
        state = reply[MODE]
        modes.append(state)
        assert torch.equal(reply[BY_BEST], state == BEST)
    assert torch.equal(modes[0], modes[2])
    assert set(modes[0].tolist()) == {BEST, AVERAGE}
    assert (modes[0] == BEST).float().mean().item() == pytest.approx(0.25, abs=0.035)  # five standard deviations


def test_each_policy_plays_its_own_episodes() -> None:
    net = CONFIG.nets(MASKED, NET, seed=1)
    net.q.epsilon.fill_(0.0)
    rng = np.random.default_rng(1)
    obs, mask = torch.from_numpy(rng.normal(size=(500, 3))).float(), torch.from_numpy(rng.random((500, 2)) < 0.5)
    mask[:, 1] |= ~mask.any(1)
    noise = torch.from_numpy(rng.random((500, net.noise_size), dtype=np.float32))
    rows = Batch({"obs": obs, "action_mask": mask, "noise": noise})
    best = net.act(rows | {MODE: torch.full((500,), BEST)})["action"]
    assert torch.equal(best, net.q.probabilities(rows).argmax(-1))
    alone = CONFIG.nets(MASKED, NET, seed=1, average_alone=True)
    assert not alone.state_spec
    drawn = net.act(rows | {MODE: torch.full((500,), AVERAGE)})["action"]
    assert torch.equal(drawn, alone.act(Batch({**rows, "noise": noise[:, :1]}))["action"])
    assert bool(mask.gather(1, torch.stack([best, drawn], 1)).all())
    assert torch.equal(alone.probabilities(rows).argmax(-1), alone.act(rows, greedy=True)["action"])


# ------------------------------------------------------------------------------------------------------------- memories
def by_hand(data: Batch, gamma: float) -> tuple[list[Any], list[Any]]:
    """The decisions of a segment, row by row and step by step."""
    num_steps, num_rows = data["action"].shape
    final = {int(place): f for f, place in enumerate(data["final_index"])}
    best, average = [], []
    for t in range(num_steps):
        for b in range(num_rows):
            if not data[ACTIVE][t, b]:
                continue
            seen = (data["obs"][t, b].tolist(), data["action_mask"][t, b].tolist(), int(data["action"][t, b]))
            if data[BY_BEST][t, b]:
                average.append(seen)
            paid = 0.0
            for s in range(t, num_steps):
                paid += data["rewards/env"][s, b].item()
                over = bool(data["terminated"][s, b])
                if over or bool(data["truncated"][s, b]):
                    f = final[s * num_rows + b]
                    best.append((*seen, paid, 0.0 if over else gamma, data["final_obs"][f].tolist(), [True, True]))
                    break
                if data[ACTIVE][s + 1, b]:
                    following = data["obs"][s + 1, b].tolist(), data["action_mask"][s + 1, b].tolist()
                    best.append((*seen, paid, gamma, *following))
                    break
    return best, average


@pytest.mark.parametrize("seed", range(4))
def test_memories_get_what_a_loop_over_decisions_finds(seed: int) -> None:
    data = turns(seed).arrays
    best, average = learner(replace(CONFIG, gamma=0.5)).of_decisions(data)
    due_best, due_average = by_hand(data, 0.5)
    found = list(zip(*(best[k].tolist() for k in ("obs", "action_mask", "action")), strict=True))
    assert found == [x[:3] for x in due_best]
    assert best["rewards/env"].tolist() == pytest.approx([x[3] for x in due_best], abs=1e-6)
    assert best["discount"].tolist() == [x[4] for x in due_best]
    assert best["next_obs"].tolist() == [x[5] for x in due_best]
    assert best["next_action_mask"].tolist() == [x[6] for x in due_best]
    assert list(zip(*(average[k].tolist() for k in ("obs", "action_mask", "action")), strict=True)) == due_average
    assert len(due_best) > len(due_average) > 3


# ------------------------------------------------------------------------------------------------------------- learning
def test_the_average_policy_becomes_the_mean_of_what_the_best_response_did() -> None:
    """At two observations, which the best response has answered 3 : 1 and 1 : 1; a forbidden action stays at 0."""
    config = replace(CONFIG, policy_lr=0.02, num_updates=150, policy_batch_size=64)
    made = learner(config)
    obs = torch.eye(3)[[0] * 4 + [1] * 2 + [2] * 2]
    mask = torch.ones(8, 2, dtype=torch.bool)
    mask[6:, 0] = False
    made.reservoir.insert({"obs": obs, "action_mask": mask, "action": torch.tensor([0, 0, 0, 1, 0, 1, 1, 1])}, make_rng(0))
    rows = made.reservoir.draw(150 * 64, make_rng(1))
    batch = Batch({f"average/{k}": x for k, x in rows.items()}, recent=torch.tensor(0), reservoir=torch.tensor(8))
    made.update(batch)
    found = made.net.probabilities(Batch(obs=obs, action_mask=mask))
    assert found[0, 0].item() == pytest.approx(0.75, abs=0.05)
    assert found[4, 0].item() == pytest.approx(0.5, abs=0.05)
    assert found[6].tolist() == [0.0, 1.0]


def test_the_best_response_learns_what_actions_pay() -> None:
    made = learner(replace(CONFIG, lr=0.01, num_updates=300, batch_size=32, target_every=20))
    obs = torch.eye(3)[[0, 0, 1, 1]]
    one = torch.ones(4, 2, dtype=torch.bool)
    # at 0, action 1 leads on to 1, where action 0 pays 2; action 0 pays 1 at once
    rows = {
        **{"obs": obs, "action_mask": one, "action": torch.tensor([0, 1, 0, 1])},
        **{"next_obs": torch.eye(3)[[2, 1, 2, 2]], "next_action_mask": one},
        **{"rewards/env": torch.tensor([1.0, 0.0, 2.0, -1.0]), "discount": torch.tensor([0.0, 1.0, 0.0, 0.0])},
    }
    made.recent.insert(rows, make_rng(0))
    drawn = made.recent.draw(300 * 32, make_rng(1))
    made.update(Batch({f"best/{k}": x for k, x in drawn.items()}, recent=torch.tensor(4), reservoir=torch.tensor(0)))
    found = made.net.q.q(Batch(obs=torch.eye(3)[:2])).flatten().tolist()
    assert found == pytest.approx([1.0, 2.0, 2.0, -1.0], abs=0.15)


def test_nothing_is_learned_before_a_memory_is_full_enough() -> None:
    made = learner(replace(CONFIG, min_fill=60))
    before = {k: x.clone() for k, x in made.params().items()}
    seen = []
    for seed in range(8):
        update = made.update(made.prepare({"s": [turns(seed)]}, progress=0.1))
        seen.append((update.metrics["recent"], "best/q" in update.metrics, "average/entropy" in update.metrics))
    assert [learned for _, learned, _ in seen] == [num >= 60 for num, _, _ in seen]
    assert seen[0][1:] == (False, False)
    assert seen[-1][1:] == (True, True)
    assert any(not torch.equal(x, before[k]) for k, x in made.params().items())


def test_a_learner_goes_on_from_its_state_bit_for_bit() -> None:
    one, other = learner(), learner(replace(CONFIG, policy_lr=0.5))
    for seed in range(3):
        one.update(one.prepare({"s": [turns(seed)]}, progress=0.1))
    other.set("policy_lr", CONFIG.policy_lr)
    other.load_state_dict(one.state_dict())
    for seed in range(3, 6):
        updates = [x.update(x.prepare({"s": [turns(seed)]}, progress=0.5)).metrics for x in (one, other)]
        assert updates[0] == updates[1]
    assert all(torch.equal(x, other.params()[k]) for k, x in one.params().items())


def test_live_settings_reach_both_networks() -> None:
    made = learner()
    for name, value in (("lr", 0.2), ("policy_lr", 0.3), ("anticipation", 0.7), ("epsilon", 0.4)):
        made.set(name, value)
    made.prepare({"s": [turns()]}, progress=0.5)
    assert (made.best.optimiser.lr, made.optimiser.lr) == (0.2, 0.3)
    assert made.params()["anticipation"].item() == pytest.approx(0.7)
    assert made.params()["q.epsilon"].item() == pytest.approx(0.4)
    made.set("target_every", 7)
    assert made.best.config.target_every == 7
    with pytest.raises(ConfigError, match="replay_size"):
        made.set("replay_size", 7)


def test_ranks_take_the_step_of_one() -> None:
    """On a minibatch of which each has its part; the memories are each rank's own."""
    one = learner(replace(CONFIG, num_updates=2))
    one.recent.insert(one.of_decisions(turns(1).arrays)[0], make_rng(0))
    one.reservoir.insert(one.of_decisions(turns(1).arrays)[1], make_rng(0))
    drawn = {"best": one.recent.draw(16, make_rng(1)), "average": one.reservoir.draw(16, make_rng(2))}

    def batch(rank: int, world: int) -> Batch:
        found = Batch(recent=torch.tensor(9), reservoir=torch.tensor(9))
        for name, rows in drawn.items():
            # minibatches of 8, of which each rank has a part
            parts = {k: x.unflatten(0, (2, world, 8 // world))[:, rank].flatten(0, 1) for k, x in rows.items()}
            found |= {f"{name}/{k}": x for k, x in parts.items()}
        return found

    def work(ranks: Collective) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
        made = learner(replace(CONFIG, num_updates=2), ranks)
        metrics = made.update(batch(ranks.rank, ranks.world_size)).metrics
        return {k: x.clone() for k, x in made.params().items()}, metrics

    torch.set_num_threads(1)
    params, metrics = work(SingleProcess())
    found = together(2, work)
    for other, _ in found:
        for key, x in params.items():
            torch.testing.assert_close(other[key], x, rtol=1e-4, atol=1e-6)
    for key, value in metrics.items():
        assert np.mean([said[key] for _, said in found]) == pytest.approx(value, rel=1e-4, abs=1e-5), key


def test_segments_and_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(ConfigError, match="who decided"):
        learner().prepare({"s": [make_segment(1, spec=MASKED)]}, progress=0.0)
    with pytest.raises(ConfigError, match=r"nfsp.reservoir_size = 3: must hold nfsp.min_fill"):
        replace(CONFIG, reservoir_size=3).check()
    with pytest.raises(ConfigError, match=r"nfsp.anticipation = 2: must be at least 0 and at most 1|nfsp.anticipation"):
        replace(CONFIG, anticipation=2.0).check()

    class Three(SingleProcess):
        world_size = 3

    with pytest.raises(ConfigError, match="shared evenly by 3"):
        learner(CONFIG, Three())

"""Heads against torch.distributions (which the library does not use) and against loops over parts."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import Categorical, Normal

from runnel.core.spaces import ActionLeaf, ActionSpec, multi_action
from runnel.ops import distributions as dist
from runnel.ops.distributions import make_head


def choice(n: int) -> ActionSpec:
    return ActionSpec("discrete", num_actions=n)


def box(*shape: int) -> ActionSpec:
    size = int(np.prod(shape))
    return ActionSpec("continuous", shape=shape, low=(-1.0,) * size, high=(1.0,) * size)


def multi(*parts: ActionSpec) -> ActionSpec:
    return multi_action(parts, [ActionLeaf((i,), part.shape, "int64", 1) for i, part in enumerate(parts)])


SPECS = {
    "discrete": choice(4),
    "one action": choice(1),
    "box": box(3),
    "box of two dims": box(2, 2),
    "scalar box": box(),
    "equal choices": multi(choice(3), choice(3)),
    "ragged choices": multi(choice(2), choice(4), choice(1)),
    "binary": multi(*[choice(2)] * 5),
    "boxes": multi(box(2), box(1)),
    "choices then box": multi(choice(3), choice(2), box(2)),
    "mixed order": multi(box(2, 1), choice(3), box(1), choice(2)),
}


def inputs(spec: ActionSpec, lead: tuple[int, ...], seed: int = 0) -> dict[str, Any]:
    head, g = make_head(spec), torch.Generator().manual_seed(seed)
    mask = None
    if spec.mask_size:
        mask = torch.rand(*lead, spec.mask_size, generator=g) < 0.6
        sizes = [p.mask_size for p in spec.parts if p.mask_size] or [spec.mask_size]
        for first in np.cumsum([0, *sizes[:-1]]):
            mask[..., int(first)] = True
    return {
        "head": head,
        "scores": torch.randn(*lead, head.num_scores, generator=g),
        "noise": torch.rand(*lead, head.noise_size, generator=g),
        "log_std": torch.randn(head.num_log_std, generator=g) if head.num_log_std else None,
        "mask": mask,
    }


def reference(
    spec: ActionSpec, scores: torch.Tensor, action: torch.Tensor, mask: Any, log_std: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probability and entropy, part by part. Scores and log-deviations stand in the order choices, boxes."""
    parts = spec.parts or (spec,)
    flat = action.reshape(*scores.shape[:-1], spec.noise_size).double()
    logit, mean = 0, sum(p.num_actions for p in parts if p.kind == "discrete")
    num_logits, column = mean, 0
    total = torch.zeros(scores.shape[:-1], dtype=torch.float64), torch.zeros(scores.shape[:-1], dtype=torch.float64)
    for part in parts:
        if part.kind == "discrete":
            logits = scores[..., logit : logit + part.num_actions].double()
            if mask is not None:
                logits = logits.masked_fill(~mask[..., logit : logit + part.num_actions], -torch.inf)
            d: Any = Categorical(probs=logits.softmax(-1))
            probs = logits.softmax(-1)
            value = flat[..., column]
            entropy = -torch.special.xlogy(probs, probs).sum(-1)
            total = total[0] + d.log_prob(value), total[1] + entropy
            logit, column = logit + part.num_actions, column + 1
        else:
            at = mean - num_logits
            std = log_std[at : at + part.size].double().exp()
            d = Normal(scores[..., mean : mean + part.size].double(), std)
            value = flat[..., column : column + part.size]
            total = total[0] + d.log_prob(value).sum(-1), total[1] + d.entropy().sum(-1)
            mean, column = mean + part.size, column + part.size
    return total


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("lead", [(), (5,), (3, 4)])
@pytest.mark.parametrize("name", SPECS)
def test_sample_mode_and_evaluate_agree_with_torch_distributions(name: str, lead: tuple[int, ...], masked: bool) -> None:
    spec = SPECS[name]
    x = inputs(spec, lead)
    head, mask = x["head"], x["mask"] if masked else None
    assert (head.num_scores, head.noise_size) == (spec.size, spec.noise_size)
    for action, logprob in (
        head.sample(x["scores"], x["noise"], mask, x["log_std"]),
        head.mode(x["scores"], mask, x["log_std"]),
    ):
        assert action.shape == (*lead, *spec.shape)
        assert action.dtype == spec.dtype
        wanted, entropy = reference(spec, x["scores"], action, mask, x["log_std"])
        got, spread = head.evaluate(x["scores"], action, mask, x["log_std"])
        assert logprob.shape == got.shape == spread.shape == lead
        torch.testing.assert_close(logprob.double(), wanted, atol=2e-4, rtol=1e-4)
        torch.testing.assert_close(got.double(), wanted, atol=2e-4, rtol=1e-4)
        torch.testing.assert_close(spread.double(), entropy, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["discrete", "box"])
def test_plain_heads_are_the_plain_functions_to_the_last_bit(name: str) -> None:
    x = inputs(SPECS[name], (6,))
    head, scores, noise, log_std = x["head"], x["scores"], x["noise"], x["log_std"]
    if name == "discrete":
        logits = dist.mask_logits(scores, x["mask"])
        pairs = [(head.sample(scores, noise, x["mask"], None), dist.categorical_sample(logits, noise))]
        pairs.append((head.mode(scores, x["mask"], None), dist.categorical_mode(logits)))
        action = pairs[0][1][0]
        pairs.append((head.evaluate(scores, action, x["mask"], None), dist.categorical_evaluate(logits, action)))
    else:
        pairs = [(head.sample(scores, noise, None, log_std), dist.gaussian_sample(scores, log_std, noise))]
        pairs.append((head.mode(scores, None, log_std), dist.gaussian_mode(scores, log_std)))
        action = pairs[0][1][0]
        pairs.append((head.evaluate(scores, action, None, log_std), dist.gaussian_evaluate(scores, log_std, action)))
    for got, wanted in pairs:
        assert torch.equal(got[0], wanted[0])
        assert torch.equal(got[1], wanted[1])


def test_each_part_is_sampled_as_if_it_were_alone() -> None:
    spec = SPECS["mixed order"]
    x = inputs(spec, (50,), seed=3)
    action, _ = x["head"].sample(x["scores"], x["noise"], x["mask"], x["log_std"])
    first = dist.categorical_sample(dist.mask_logits(x["scores"][:, :3], x["mask"][:, :3]), x["noise"][:, :1])[0]
    second = dist.categorical_sample(dist.mask_logits(x["scores"][:, 3:5], x["mask"][:, 3:5]), x["noise"][:, 1:2])[0]
    boxes = dist.gaussian_sample(x["scores"][:, 5:], x["log_std"], x["noise"][:, 2:])[0]
    assert torch.equal(action[:, 2].long(), first)
    assert torch.equal(action[:, 4].long(), second)
    assert torch.equal(action[:, [0, 1, 3]], boxes)


def test_every_mask_of_a_small_action_is_kept() -> None:
    """All 3 * 7 masks with an open choice in each part, at noise from 0 to 1: only open choices come, and all of them do."""
    head = make_head(multi(choice(2), choice(3)))
    ends = torch.linspace(0, 1, 41)
    noise = torch.cartesian_prod(ends, ends)
    scores = torch.tensor([0.3, -0.2, 0.1, 0.5, -0.4]).expand(len(noise), 5)
    first_masks = [m for m in itertools.product([False, True], repeat=2) if any(m)]
    second_masks = [m for m in itertools.product([False, True], repeat=3) if any(m)]
    for a, b in itertools.product(first_masks, second_masks):
        mask = torch.tensor([*a, *b]).expand(len(noise), 5)
        action, logprob = head.sample(scores, noise, mask)
        assert set(action[:, 0].tolist()) == {i for i, flag in enumerate(a) if flag}
        assert set(action[:, 1].tolist()) == {i for i, flag in enumerate(b) if flag}
        assert logprob.isfinite().all()
        best, _ = head.mode(scores, mask)
        assert all(a[i] and b[j] for i, j in best.tolist())


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=5),
    scale=st.sampled_from([0.1, 1.0, 50.0]),
    data=st.data(),
)
def test_choices_never_leave_their_range_or_mask(sizes: list[int], scale: float, data: st.DataObject) -> None:
    spec = multi(*[choice(n) for n in sizes])
    head, rng = make_head(spec), np.random.default_rng(data.draw(st.integers(0, 2**16)))
    scores = torch.from_numpy(rng.normal(0, scale, (16, sum(sizes))).astype(np.float32))
    noise = torch.from_numpy(rng.choice([0.0, 1e-8, 0.5, 1.0 - 2**-24, 1.0], (16, len(sizes))).astype(np.float32))
    flags = [np.concatenate([rng.permutation(np.arange(n) < rng.integers(1, n + 1)) for n in sizes]) for _ in range(16)]
    mask = torch.from_numpy(np.stack(flags))
    action, logprob = head.sample(scores, noise, mask)
    firsts = np.cumsum([0, *sizes[:-1]])
    for column, (first, n) in enumerate(zip(firsts, sizes, strict=True)):
        assert ((action[:, column] >= 0) & (action[:, column] < n)).all()
        assert mask[:, first : first + n].gather(1, action[:, column : column + 1]).all()
    assert not logprob.isnan().any()


@pytest.mark.parametrize("name", SPECS)
def test_gradients_are_finite_and_stop_at_closed_choices(name: str) -> None:
    spec = SPECS[name]
    x = inputs(spec, (8,), seed=1)
    action, _ = x["head"].sample(x["scores"], x["noise"], x["mask"], x["log_std"])
    scores = x["scores"].clone().requires_grad_()
    logprob, entropy = x["head"].evaluate(scores, action, x["mask"], x["log_std"])
    (logprob.sum() + entropy.sum()).backward()
    assert scores.grad is not None
    assert scores.grad.isfinite().all()
    if x["mask"] is not None:
        assert (scores.grad[..., : spec.mask_size][~x["mask"]] == 0).all()


def test_a_head_adds_nothing_to_what_is_published() -> None:
    for spec in SPECS.values():
        head = make_head(spec)
        assert not head.state_dict()
        assert not list(head.parameters())


def test_frequencies_of_a_composite_follow_its_probabilities() -> None:
    spec = multi(choice(2), choice(3))
    head, num = make_head(spec), 40_000
    noise = torch.from_numpy(np.random.default_rng(0).random((num, 2), dtype=np.float32))
    scores = torch.tensor([1.0, 0.0, 0.5, -1.0, 0.2]).expand(num, 5)
    action, _ = head.sample(scores, noise)
    joint = torch.bincount(action[:, 0] * 3 + action[:, 1], minlength=6) / num
    wanted = torch.outer(scores[0, :2].softmax(-1), scores[0, 2:].softmax(-1)).flatten()
    torch.testing.assert_close(joint, wanted, atol=0.01, rtol=0)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", SPECS)
def test_a_head_is_captured_in_a_cuda_graph(name: str) -> None:
    x = {k: v.cuda() if isinstance(v, torch.Tensor) else v for k, v in inputs(SPECS[name], (8,)).items()}
    head = x["head"].cuda()

    def both() -> tuple[torch.Tensor, ...]:
        action, logprob = head.sample(x["scores"], x["noise"], x["mask"], x["log_std"])
        return action, logprob, *head.evaluate(x["scores"], action, x["mask"], x["log_std"])

    wanted = [t.clone() for t in both()]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = both()
    graph.replay()
    assert all(torch.equal(a, b) for a, b in zip(captured, wanted, strict=True))

"""Every loss refuses tensors of unequal shapes; torch would broadcast `[N, 1]` beside `[N]` into a loss over `[N, N]`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from runnel.core.errors import DataError
from runnel.losses import actor, on_policy, preference, td, token

N, A, S = 4, 3, 2
ROW, UNIT = torch.arange(N), torch.arange(N)


def flat() -> Tensor:
    return torch.linspace(0.1, 0.9, N)


def column(x: Tensor) -> Tensor:
    """The same numbers with one dimension more: `[N] -> [N, 1]`."""
    return x.unsqueeze(-1)


NUMBERS: dict[str, Any] = {
    **{"denominator": 4.0, "count": 4.0, "clip": 0.2, "dual_clip": None, "value_clip": None, "value_coef": 0.5},
    **{"clip_low": 0.2, "clip_high": 0.2, "max_ratio": 2.0, "behaviour": "clamp", "behaviour_low": 0.5, "behaviour_high": 2.0},
    **{"beta": 0.1, "num_rows": N, "num_units": N, "version": 3, "target_entropy": -1.0, "entropy_coef": 0.0, "delta": 1.0},
    "expectile": 0.7,
    **{"max_log_ratio": None, "min_ratio": 0.0, "tau": 0.5, "vocab_size": 50, "focus": 1.0},
    **{"mean": True, "form": "sigmoid", "smoothing": 0.1, "scale": 1.0, "gap": 0.5},
}
SPECIAL: dict[str, dict[str, Tensor]] = {
    "ensemble_td_loss": {"q": torch.rand(S, N)},
    "soft_actor_loss": {"q": torch.rand(S, N), "temperature": torch.tensor(0.2)},
    "soft_actor_loss_discrete": {"q": torch.rand(S, N, A), "logprobs": torch.rand(N, A), "temperature": torch.tensor(0.2)},
    "categorical_td_loss": {"logits": torch.rand(N, A), "target": torch.rand(N, A).softmax(-1)},
    "temperature_loss": {
        "log_temperature": torch.tensor(0.2),
        "entropy": torch.tensor(1.0),
        "target_entropy": torch.tensor(0.5),
    },
}
ALONE = {"deterministic_actor_loss"}
"""It takes a single tensor."""
LOSSES: list[Callable[..., Any]] = [
    fn
    for module in (actor, on_policy, preference, td, token)
    for name, fn in vars(module).items()
    if inspect.isfunction(fn) and fn.__module__ == module.__name__ and not name.startswith("_") and name not in ALONE
]


def arguments(loss: Callable[..., Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors that fit, and the rest."""
    tensors, rest = dict(SPECIAL.get(loss.__name__, {})), {}
    for name, parameter in inspect.signature(loss).parameters.items():
        if "Tensor" not in str(parameter.annotation) or name == "denominator":
            rest[name] = NUMBERS[name]
        elif name == "mask":
            tensors[name] = torch.ones(N, dtype=torch.bool)
        elif name in ("row", "group", "unit", "policy_version"):
            tensors[name] = torch.arange(N)
        else:
            tensors.setdefault(name, flat())
    return tensors, rest


CASES = [(loss, name) for loss in LOSSES for name in arguments(loss)[0] if name != "temperature"]


@pytest.mark.parametrize(("loss", "name"), CASES, ids=[f"{loss.__name__}-{name}" for loss, name in CASES])
def test_a_tensor_with_one_dimension_more_is_refused(loss: Callable[..., Any], name: str) -> None:
    tensors, rest = arguments(loss)
    loss(**tensors, **rest)
    wrong = tensors | {name: column(tensors[name])}
    with pytest.raises(DataError, match=rf"^{loss.__name__}: .* must have one shape"):
        loss(**wrong, **rest)


def test_what_was_broadcast_was_another_loss() -> None:
    v, target = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([1.0, 2.0, 3.0, 4.0])
    assert on_policy.value_loss(v, target, denominator=4.0).value.item() == 0.0
    assert (0.5 * (v[:, None] - target[None]).square()).sum().item() / 4.0 == 5.0  # what [N, 1] gave without the check
    with pytest.raises(DataError, match=r"value \[4, 1\] and target \[4\]"):
        on_policy.value_loss(v[:, None], target, denominator=4.0)

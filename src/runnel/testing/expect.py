"""Assertions of contract checks: they hold without a test framework, and say what was expected."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor


def equal(found: Any, wanted: Any, what: str) -> None:
    """Raise an `AssertionError` that names `what` unless the two are equal."""
    if found != wanted:
        raise AssertionError(f"{what}: expected {wanted!r}, found {found!r}")


def true(condition: bool, what: str) -> None:
    """Raise an `AssertionError` unless `condition` holds."""
    if not condition:
        raise AssertionError(what)


def same_arrays(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor], what: str) -> None:
    """Names, types, shapes and bytes are equal."""
    equal(sorted(found), sorted(wanted), f"{what}: names")
    for name, value in wanted.items():
        equal((found[name].dtype, tuple(found[name].shape)), (value.dtype, tuple(value.shape)), f"{what}: {name}")
        true(torch.equal(found[name].cpu(), value.cpu()), f"{what}: the values of {name} have changed")


def raises(kind: type[Exception], call: Callable[[], Any], what: str) -> str:
    """The text of the error of `kind` that `call` must raise."""
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError(f"{what}: expected a {kind.__name__}, and nothing was raised")

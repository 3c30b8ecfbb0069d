"""Assertions for contract checks. They need no test framework, and their messages tell what was expected."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor


def equal(found: object, wanted: object, what: str) -> None:
    """Raise an `AssertionError` that names `what` unless the two are equal."""
    if found != wanted:
        raise AssertionError(f"{what}: expected {wanted!r}, found {found!r}")


def true(condition: bool, what: str) -> None:
    """Raise an `AssertionError` unless `condition` holds."""
    if not condition:
        raise AssertionError(what)


def same_arrays(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor], what: str) -> None:
    """Raise an `AssertionError` unless names, types, shapes and values are equal."""
    equal(sorted(found), sorted(wanted), f"{what}: names")
    for name, value in wanted.items():
        equal((found[name].dtype, tuple(found[name].shape)), (value.dtype, tuple(value.shape)), f"{what}: {name}")
        true(torch.equal(found[name].cpu(), value.cpu()), f"{what}: the values of {name} have changed")


def raises(kind: type[Exception], call: Callable[[], object], what: str) -> str:
    """Call `call`, which must raise an error of `kind`. Returns the text of that error."""
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError(f"{what}: expected a {kind.__name__}, and nothing was raised")

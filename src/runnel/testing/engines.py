"""The contract of an engine, as a check that any engine's author can run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from runnel.core.contracts.params import ParamSet
from runnel.testing.engine_basics import BASICS, check_wrong_params
from runnel.testing.engine_case import EngineCase, Logprobs
from runnel.testing.engine_sampling import SAMPLING

PROPERTIES: Mapping[str, Callable[[EngineCase], None]] = {**BASICS, "wrong parameters": check_wrong_params, **SAMPLING}
"""The whole contract, one check a name."""


def check_engine(
    make_engine: Callable[[], Any],
    params: ParamSet,
    *,
    prompts: Sequence[Sequence[int]],
    logprobs: Logprobs | None = None,
    decode: Callable[[Sequence[int]], str] | None = None,
    exact: bool = True,
    tolerance: float = 1e-5,
    properties: Mapping[str, Callable[[EngineCase], None]] = PROPERTIES,
) -> None:
    """Raise `AssertionError` with a reason if an engine breaks its contract.

    `make_engine` returns an engine without requests and with room for at least two at once; it is closed before the next one
    is made, so an engine that is slow to start may be handed out again, emptied. `params` is a version to load; `prompts` are
    at least three token sequences that it can complete with eight tokens more.

    Without `logprobs` (a plain forward pass) log-probabilities are checked only against each other; without `decode` (the one
    that the engine has) stop texts are not checked. The one weakness an engine may declare: `exact=False` says that its
    log-probabilities move by rounding, up to `tolerance`, with its neighbours and when a completion is taken up again (its
    keys and values are computed anew). Its tokens must be the same even then.
    """
    case = EngineCase(make_engine, params, prompts, logprobs, decode, exact, tolerance)
    for name, check in properties.items():
        try:
            check(case)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error

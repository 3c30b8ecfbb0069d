"""The contract check of language-model engines, for their authors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from runnel.core.contracts.params import ParamSet
from runnel.llm.engines.requests import Engine
from runnel.testing.engine_basics import BASICS, check_wrong_params
from runnel.testing.engine_case import EngineCase, Logprobs
from runnel.testing.engine_sampling import SAMPLING
from runnel.testing.engine_sessions import SESSIONS

PROPERTIES: Mapping[str, Callable[[EngineCase], None]] = {
    **BASICS,
    "wrong parameters": check_wrong_params,
    **SAMPLING,
    **SESSIONS,
}
"""The whole contract: checks by name."""


def check_engine(
    make_engine: Callable[[], Engine],
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

    `make_engine` returns an engine without requests and with room for at least two at once. It is closed before the next one is
    made, so an engine that starts slowly may be returned again, emptied. `params` is a version to load. `prompts` are at least
    three token sequences, each of which it can complete with eight tokens.

    Without `logprobs` (a plain forward pass) log-probabilities are compared only with each other. Without `decode` (the
    engine's own) stop texts are not checked. `exact=False` declares that log-probabilities change by rounding, up to
    `tolerance`, with the other requests in a batch and when a completion is resumed (its keys and values are computed again).
    Its tokens must be the same even then.
    """
    case = EngineCase(make_engine, params, prompts, logprobs, decode, exact, tolerance)
    for name, check in properties.items():
        try:
            check(case)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error

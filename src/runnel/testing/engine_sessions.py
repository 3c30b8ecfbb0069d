"""Checks of conversations: whatever an engine keeps between two turns, its replies are those of the whole prompts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from runnel.core.contracts.inference import Reply, Request
from runnel.llm.engines.requests import Engine, make_request
from runnel.testing.engine_case import EngineCase, answer, tokens_of

TURN = 3
"""Tokens of a reply: two turns with a token between them fit into the eight tokens that a prompt leaves."""


def check_turns(case: EngineCase) -> None:
    """The next turn of a conversation gives what a request of its own gives, and says how many tokens it cost."""
    with case.engine() as engine:
        rows = [_said(engine, i, prompt) for i, prompt in enumerate(case.prompts)]
        for i, row in enumerate(rows):
            _check_turn(case, engine, row, session=i)


def check_wrong_session(case: EngineCase) -> None:
    """The tokens of a request decide what is used again, and never its session alone."""
    with case.engine() as engine:
        row = _said(engine, 0, case.prompts[0])
        for other in case.prompts[1:]:
            _check_turn(case, engine, other, session=0)
        _check_turn(case, engine, [*case.prompts[0], *row[len(case.prompts[0]) :][::-1]], session=0)


def check_turns_of_versions(case: EngineCase) -> None:
    """A turn that needs an exact version uses nothing that another version has made."""
    version = case.params.version + 1
    with case.engine() as engine:
        rows = [_said(engine, i, prompt) for i, prompt in enumerate(case.prompts)]
        engine.load_params(case.others(version))
        for i, row in enumerate(rows):
            _check_turn(case, engine, row, session=i, version=version)


def check_kept_snapshot(case: EngineCase) -> None:
    """A restored engine goes on with conversations as the first one would have."""
    with case.engine() as engine:
        rows = [_said(engine, i, prompt) for i, prompt in enumerate(case.prompts)]
        state = engine.snapshot()
        expected = answer(engine, [_turn(i, row, session=i) for i, row in enumerate(rows)])
    with case.engine() as resumed:
        resumed.restore(state)
        found = answer(resumed, [_turn(i, row, session=i) for i, row in enumerate(rows)])
    word = "bit for bit" if case.exact else "with the same tokens"
    for a, b in zip(expected, found, strict=True):
        if not case.exact:  # what such an engine has kept need not be part of a snapshot
            del a.rows["num_prefilled"], b.rows["num_prefilled"]
        assert case.same(a, b), f"the next turn in a restored engine must be the same {word}"


def _turn(id: int, tokens: Sequence[int], *, session: int | None, version: int = -1) -> Request:
    return make_request(id, tokens, seed=id, max_tokens=TURN, session=session, version=version)


def _said(engine: Engine, session: int, prompt: Sequence[int]) -> list[int]:
    """The prompt of a second turn: that of the first, its reply, and one token more."""
    reply = answer(engine, [_turn(session, prompt, session=session)])[0]
    _check_count(reply, len(prompt))
    return [*prompt, *tokens_of(reply), prompt[0]]


def _check_turn(case: EngineCase, engine: Engine, row: Sequence[int], *, session: int, version: int = -1) -> None:
    turn = answer(engine, [_turn(90, row, session=session, version=version)])[0]
    alone = answer(engine, [_turn(90, row, session=None, version=version)])[0]
    _check_count(turn, len(row))
    assert "num_prefilled" not in alone.rows, "num_prefilled is for requests with a session"
    assert tokens_of(turn) == tokens_of(alone), "a turn must give the tokens that its whole prompt gives"
    gap = float((turn.rows["logprob"] - alone.rows["logprob"]).abs().max())
    assert gap <= 4 * case.tolerance, f"log-probabilities of a turn differ by {gap:.2g} from those of its whole prompt"


def _check_count(reply: Reply, size: int) -> None:
    assert "num_prefilled" in reply.rows, "a reply to a request with a session has num_prefilled"
    assert reply.rows["num_prefilled"].shape == (1,)
    assert 0 <= int(reply.rows["num_prefilled"]) <= size, "num_prefilled counts tokens of the prompt, each at most once"


SESSIONS: Mapping[str, Callable[[EngineCase], None]] = {
    "turns": check_turns,
    "wrong session": check_wrong_session,
    "turns of versions": check_turns_of_versions,
    "snapshot of turns": check_kept_snapshot,
}
"""Properties by name: conversations of several turns."""

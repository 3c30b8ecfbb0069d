"""Who speaks for the agents of a conversation: the policy that is trained, or a partner that never changes.

A partner is a model of its own, with its own tokenizer, behind an inference stream of its own. It is told the same messages as
any agent, as text, so its vocabulary may be another one. What it says is part of the world: it is never in a segment.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from runnel.core.errors import ConfigError
from runnel.core.routes import STORED
from runnel.llm.tokenize import Tokenizer

AGENTS = "agents"
"""The setting that says who speaks for whom."""
TRAINED, FROZEN, MODEL = "policy", "frozen", "model:"
"""The policy that is trained; the model as it was when the run began; the model of a folder."""
_KINDS = f"write {TRAINED} (trained), {FROZEN} (the model as it is when the run begins), {MODEL}FOLDER or {STORED}FOLDER"


@dataclass(frozen=True)
class Partner:
    """A model that speaks for an agent and never changes: the inference stream that it answers on, its tokenizer, and the most
    tokens of its prompt and reply together."""

    stream: str
    tokenizer: Tokenizer
    max_context: int


def speakers_of(entries: Sequence[str], agents: Sequence[str]) -> dict[str, str]:
    """Who speaks for each of `agents`, as `PATTERN=WHO` entries say it: the first whose pattern (a regular expression) matches
    the whole name counts. Agents that none matches are the policy's.

    >>> speakers_of(["buyer=frozen"], ["buyer", "seller"])
    {'buyer': 'frozen', 'seller': 'policy'}
    """
    parsed = [_parse(entry) for entry in entries]
    found: dict[str, str] = {}
    used: set[int] = set()
    for agent in agents:
        first = next((i for i, (pattern, _) in enumerate(parsed) if pattern.fullmatch(agent)), None)
        found[agent] = TRAINED if first is None else parsed[first][1]
        used |= set() if first is None else {first}
    for i, entry in enumerate(entries):
        if i not in used:
            taken = any(parsed[i][0].fullmatch(agent) for agent in agents)
            why = "earlier entries take all agents that it matches" if taken else "it matches no agent"
            raise ConfigError(AGENTS, entry, f"{why}; the agents are {', '.join(agents)}")
    if TRAINED not in found.values():
        raise ConfigError(AGENTS, list(entries), f"no agent is left that is trained; let one be {TRAINED}")
    return found


def _parse(entry: str) -> tuple[re.Pattern[str], str]:
    pattern, equals, who = entry.partition("=")
    if not (pattern and equals and who):
        raise ConfigError(AGENTS, entry, f"write AGENT=WHO, for example buyer={FROZEN}; for WHO {_KINDS}")
    if who.startswith(f"{TRAINED}:"):
        fix = "a run trains one policy, which speaks for all agents that are trained; train the others in runs of their own"
        raise ConfigError(AGENTS, entry, f"{fix}, and let them meet as {STORED}FOLDER")
    if who not in (TRAINED, FROZEN) and not (who.startswith((MODEL, STORED)) and who.partition(":")[2]):
        raise ConfigError(AGENTS, entry, f"{who!r} is not understood; {_KINDS}")
    try:
        return re.compile(pattern), who
    except re.error as error:
        raise ConfigError(AGENTS, entry, f"{pattern!r} is no regular expression ({error}); '.*' stands for any text") from error


def streams_of(speakers: Mapping[str, str]) -> dict[str, str]:
    """The inference stream of each partner, by who it is; agents with the same partner share it.

    >>> streams_of({"a": "policy", "b": "frozen", "c": "model:x", "d": "frozen"})
    {'frozen': 'partner0', 'model:x': 'partner1'}
    """
    partners = dict.fromkeys(who for who in speakers.values() if who != TRAINED)
    return {who: f"partner{i}" for i, who in enumerate(partners)}

"""Questions about a made-up country: who answers them has to search its documents, for most of them twice."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from runnel.core.contracts.chat import Message, Tool, Turn
from runnel.core.errors import DataError
from runnel.core.rng import make_rng
from runnel.core.state import Settings
from runnel.llm.rewards.extract import extract
from runnel.llm.worlds.corpus import Corpus, Document, search_tool
from runnel.llm.worlds.world import World, divided, entry, whole

_STARTS, _ENDS = "bal cor dun fel gar hol jor kes lum mor nar pel quo ras sol tev", "an eth ia or und is em ask"
STARTS, ENDS = _STARTS.split(), _ENDS.split()
ASKED = {"river": "On which river lies", "dish": "Which dish is known from", "mayor": "Who is the mayor of"}
WORK = ("baker", "painter", "pilot", "teacher", "weaver", "doctor")


@dataclass(frozen=True)
class Country:
    """Made-up facts: where each person was born, and what is true of each town."""

    born: Mapping[str, str]
    towns: Mapping[str, Mapping[str, str]]
    corpus: Corpus


class Search(World):
    """Answer a question about one of `people` persons, with the tool `search`. Reward 1 for the right answer.

    With 2 `hops` the question is about the town in which a person was born: one document says which town that is, another
    what is asked. With 1 it is about the town itself. The country is the same in all conversations, and the questions about
    some are held out. The first message without a call ends the conversation; its answer is what stands in the last
    `<answer>...</answer>`, or else its last line. Small letters and capitals, marks at the ends and "the" make no difference.
    """

    name = "search"
    max_tokens = 128

    def __init__(self, *, people: int = 200, hops: int = 2, num: int = 3, max_chars: int = 1000) -> None:
        super().__init__()
        self._people = whole("search.people", people, 10, 1000)
        self._hops = whole("search.hops", hops, 1, 2)
        self._country = made_country(self._people)
        self._tool = search_tool(self._country.corpus, num=num, max_chars=max_chars, heard=self._heard)

    def tasks(self) -> tuple[Sequence[Settings], Sequence[Settings]]:
        about = list(self._country.born if self._hops == 2 else self._country.towns)
        # divided by whom they are about, so that no held-out question shares its first document with one of training
        train, held = divided(about, f"search {self._people} {self._hops}")
        return _questions(train), _questions(held)

    def draw(self, rng: np.random.Generator) -> Settings:
        train, _ = self.tasks()
        return train[int(rng.integers(len(train)))]

    def tools(self) -> Sequence[Tool]:
        return [self._tool]

    def begin(self, task: Settings) -> Turn:
        about, asks = entry(task, "about", str, self.name), entry(task, "asks", str, self.name)
        if asks not in ASKED or about not in (*self._country.born, *self._country.towns):
            raise DataError(
                f"world {self.name!r}: the task {dict(task)!r} is about nobody, or asks for none of {', '.join(ASKED)}"
            )
        self.now["calls"] = 0
        place = f"the town where {about} was born" if about in self._country.born else f"the town of {about}"
        how = "Search the documents, and end with the answer as <answer>...</answer>."
        return Turn(f"{ASKED[asks]} {place}? {how}")

    def answer(self, text: str) -> Turn:
        found = extract(text, "tag:answer|last_line") or ""
        return Turn((), float(_plain(found) == _plain(self._right())), terminated=True)

    def script(self) -> str | Message:
        """A search for the person, one for the town, and the answer."""
        about, calls = self.now["task"]["about"], self.now["calls"]
        queries = [about, self._country.born[about]] if about in self._country.born else [about]
        if calls >= len(queries):
            return f"<answer>{self._right()}</answer>"
        called = {"name": "search", "arguments": {"query": queries[calls]}}
        call = {"id": f"call-{calls}", "type": "function", "function": called}
        return {"role": "assistant", "content": "", "tool_calls": [call]}

    def _right(self) -> str:
        task = self.now["task"]
        return self._country.towns[self._country.born.get(task["about"], task["about"])][task["asks"]]

    def _heard(self) -> None:
        self.now["calls"] += 1


def _questions(about: Sequence[str]) -> list[Settings]:
    return [{"about": name, "asks": asks} for name in about for asks in ASKED]


@lru_cache(maxsize=8)
def made_country(people: int) -> Country:
    """The country with so many people: always the same."""
    rng = make_rng(0, "search", "country", people)
    names = _names(rng, people, 3)
    towns = _names(rng, max(5, people // 4), 2)
    rest = iter(_names(rng, 3 * len(towns), 2, not_in=towns))
    facts = {town: {"river": next(rest), "dish": next(rest), "mayor": next(rest)} for town in towns}
    born = {name: towns[int(rng.integers(len(towns)))] for name in names}
    documents = [Document(f"town-{n}", town, _of_town(town, facts[town])) for n, town in enumerate(towns)]
    for n, (name, town) in enumerate(born.items()):
        work, year = WORK[int(rng.integers(len(WORK)))], int(rng.integers(1900, 2000))
        text = f"{name} is a {work}. {name} was born in {town} in the year {year}."
        documents.append(Document(f"person-{n}", name, text))
    return Country(born, facts, Corpus(documents))


def _of_town(town: str, facts: Mapping[str, str]) -> str:
    return f"{town} is a town on the river {facts['river']}. Its dish is {facts['dish']}, and its mayor is {facts['mayor']}."


def _names(rng: np.random.Generator, count: int, parts: int, *, not_in: Sequence[str] = ()) -> list[str]:
    """Made-up names, each once."""
    found: dict[str, None] = {}
    while len(found) < count:
        starts = "".join(STARTS[int(i)] for i in rng.integers(len(STARTS), size=parts))
        name = (starts + ENDS[int(rng.integers(len(ENDS)))]).capitalize()
        if name not in not_in:
            found[name] = None
    return list(found)


def _plain(text: str) -> str:
    """An answer to compare."""
    return re.sub(r"^the ", "", text.strip().strip(".,:;!?\"'*").lower()).strip()

"""A corpus of documents in memory, with BM25, and the tool that searches it."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from runnel.core.contracts.chat import Lane, OpenTool, Tool, ToolFailure
from runnel.core.errors import ConfigError, DataError
from runnel.core.state import Array, State
from runnel.llm.worlds.world import share, whole

SUFFIXES = (".txt", ".md")
FAST = 10_000
"""Documents up to which a search is so short that no thread is needed for it."""
SCHEMA = {
    "type": "object",
    "properties": {"query": {"type": "string", "description": "words to look for"}},
    "required": ["query"],
}


@dataclass(frozen=True)
class Document:
    """A text with its name."""

    id: str
    title: str
    text: str


class Found(NamedTuple):
    """A document that has words of a query, and its score."""

    document: Document
    score: float


class Corpus:
    """Documents, searched by BM25 (Robertson and Zaragoza 2009) with the inverse document frequency that Lucene takes.

    score(q, d) = sum over the words w of q of  ln(1 + (N - n + 0.5) / (n + 0.5)) f (k1 + 1) / (f + k1 (1 - b + b |d| / avg))

    There are N documents, n of which have the word w, and f is how often it is in d. |d| is the length of d in words, avg the
    mean length. A word that is twice in the query counts twice. Words are runs of letters and digits, in small letters, of
    title and text.
    """

    def __init__(self, documents: Sequence[Document], *, k1: float = 1.5, b: float = 0.75) -> None:
        self.documents = tuple(documents)
        if not self.documents:
            raise DataError("a corpus has no documents; give at least one")
        twice = [name for name, n in Counter(d.id for d in self.documents).items() if n > 1]
        if twice:
            raise DataError(f"a corpus has two documents with the id {twice[0]!r}; give each one of its own")
        self._index = _indexed(self.documents, share("corpus.k1", k1, 0, 100), share("corpus.b", b, 0, 1))

    def __len__(self) -> int:
        return len(self.documents)

    @classmethod
    def read(cls, path: str | Path, *, field: str = "corpus") -> Corpus:
        """The documents of a file of JSON lines (`id` and `text`, and `title` if there is one), or of all .txt and .md files in
        a folder and below (the id is the path in it, the title the name)."""
        place = Path(path)
        if place.is_dir():
            return cls(_of_folder(place))
        if not place.is_file():
            raise ConfigError(field, str(path), "there is no such file or folder; give JSON lines, or a folder of .txt and .md")
        return cls(_of_lines(place))

    def search(self, query: str, num: int = 3) -> list[Found]:
        """The documents with the highest scores, best first; of equal ones, the first in the corpus. Those without any word
        of the query are not found."""
        scores = np.zeros(len(self.documents))
        for word, times in Counter(words_of(query)).items():
            if word in self._index:
                places, weights = self._index[word]
                scores[places] += times * weights
        best = np.argsort(-scores, kind="stable")[:num]
        return [Found(self.documents[i], float(scores[i])) for i in best if scores[i] > 0]


def words_of(text: str) -> list[str]:
    """The words that BM25 counts.

    >>> words_of("It's 2 o'clock: GO")
    ['it', 's', '2', 'o', 'clock', 'go']
    """
    return re.findall(r"[^\W_]+", text.lower())


def _indexed(documents: Sequence[Document], k1: float, b: float) -> dict[str, tuple[Array, Array]]:
    """By word, the places of the documents that have it, and what it adds to the score of each."""
    counts = [Counter(words_of(f"{d.title} {d.text}")) for d in documents]
    lengths = np.array([sum(c.values()) for c in counts], dtype=float)
    average = max(float(lengths.mean()), 1.0)  # documents without a word are found by no query
    places: dict[str, list[int]] = defaultdict(list)
    for place, count in enumerate(counts):
        for word in count:
            places[word].append(place)
    out = {}
    for word, at in places.items():
        often = np.array([counts[i][word] for i in at], dtype=float)
        rarity = np.log(1 + (len(documents) - len(at) + 0.5) / (len(at) + 0.5))
        near = k1 * (1 - b + b * lengths[at] / average)
        out[word] = np.array(at), rarity * often * (k1 + 1) / (often + near)
    return out


# ------------------------------------------------------------------------------------------------------------- reading
def _of_folder(folder: Path) -> list[Document]:
    files = sorted(p for p in folder.rglob("*") if p.suffix in SUFFIXES and p.is_file())
    if not files:
        raise DataError(f"corpus {folder}: no .txt and no .md file is in this folder or below")
    return [Document(str(p.relative_to(folder)), p.stem, _decoded(p.read_bytes(), str(p))) for p in files]


def _of_lines(file: Path) -> list[Document]:
    lines = [(n, line) for n, line in enumerate(file.read_bytes().splitlines(), start=1) if line.strip()]
    if not lines:
        raise DataError(f"corpus {file}: the file is empty; write one document a line")
    return [_document(_decoded(line, f"{file}:{n}"), f"{file}:{n}") for n, line in lines]


def _document(line: str, place: str) -> Document:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise DataError(f"corpus {place}: the line is no JSON ({error})") from error
    if not isinstance(row, dict):
        raise DataError(f"corpus {place}: a line is an object with id and text, not {type(row).__name__}")
    name, title, text = row.get("id"), row.get("title", ""), row.get("text")
    if isinstance(name, bool) or not isinstance(name, str | int) or not isinstance(title, str) or not isinstance(text, str):
        raise DataError(f"corpus {place}: needs an id (a text or a whole number), a text, and no title or one that is a text")
    return Document(str(name), title, text)


def _decoded(data: bytes, place: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise DataError(f"corpus {place}: is not UTF-8 (byte {error.start})") from error


# ------------------------------------------------------------------------------------------------------------ the tool
class OpenSearch:
    """The tool in one conversation. `heard` is told of each call that was answered."""

    def __init__(self, corpus: Corpus, num: int, max_chars: int, heard: Callable[[], None] | None) -> None:
        self._corpus, self._num, self._max_chars, self._heard = corpus, num, max_chars, heard

    def call(self, arguments: Mapping[str, Any]) -> str:
        query = arguments.get("query")
        if not isinstance(query, str) or not query.strip():
            raise ToolFailure("give the argument query, words to look for", kind="arguments")
        found = self._corpus.search(query, self._num)
        if self._heard is not None:
            self._heard()
        if not found:
            return "No document has any of these words."
        # each document gets an equal part, so that a long one does not hide those behind it
        room = self._max_chars // len(found)
        return "\n\n".join(_shown(n, f.document, room) for n, f in enumerate(found, start=1))

    def get_state(self) -> State:
        """Nothing is kept from call to call: calls are counted by who is told of them."""
        return {}

    def set_state(self, state: State) -> None: ...

    def close(self) -> None: ...


def search_tool(corpus: Corpus, *, num: int = 3, max_chars: int = 2000, heard: Callable[[], None] | None = None) -> Tool:
    """The tool `search`: the `num` best documents of a corpus for a query, with at most `max_chars` letters of their texts.
    `heard` is called at each call that was answered."""
    whole("search.num", num, 1, 100)
    whole("search.max_chars", max_chars, 100, 10**6)

    def opened() -> OpenTool:
        return OpenSearch(corpus, num, max_chars, heard)

    lane: Lane = "inline" if len(corpus) <= FAST else "thread"
    return Tool("search", "Finds the documents that fit some words best.", SCHEMA, opened, lane=lane)


def _shown(n: int, document: Document, room: int) -> str:
    text = document.text if len(document.text) <= room else document.text[: room - 4] + " ..."
    return f"[{n}] {document.title or document.id}\n{text}"

r"""Finds the mathematical answer in a completion, and writes it as LaTeX.

The answer is the first of these that exists: the last `\boxed{...}` (boxes that are joined by a comma, "and" or "or" are one
answer); the first piece of mathematics behind the last word "answer" or `####`; the last piece of mathematics. A piece is never
cut: `(1, 2)`, `2 pi` and `x^2 + 1` are not read as a number in them.
"""

from __future__ import annotations

import re

from runnel.llm.rewards.extract import boxes

LONGEST = 1000
"""A longer text is no answer. In characters."""
OPEN, CLOSE = "([{", ")]}"
_ENV = r"\$\$(?P<display>[^$]+)\$\$|\\\[(?P<bracket>.+?)\\\]|\\\((?P<paren>.+?)\\\)|(?<![\\\w])\$(?P<inline>[^$\n]+)\$"
_CHARACTER = r"[-+*/^=<>()\[\]{}|!%°'_≤≥≠∪∞π√×·−±]"
_WORDS = "pi|sqrt|sin|cos|tan|log|ln|exp|oo|infinity|inf"
_NUMBER = r"\d+(?:[.,:]\d+)*(?:[eE][-+]?\d+(?!\w))?|\.\d+"
_TEXT = r"\\(?:text|mathrm|mathbf|operatorname|mbox)\{[^{}]*\}"
_ENVIRONMENT = r"\\begin\{(?P<kind>\w+)\}.*?\\end\{(?P=kind)\}"
_COMMAND = r"\\[a-zA-Z]+|\\[{}%$,;! ]"
_LETTERS = rf"(?<![A-Za-z])(?:{_WORDS}|[A-Za-z]|[xyz]{{2,3}}|[abc]{{2,3}})(?![A-Za-z])"
TOKEN = re.compile(rf"{_ENV}|{_ENVIRONMENT}|{_TEXT}|{_COMMAND}|{_NUMBER}|{_LETTERS}|{_CHARACTER}", re.S)
JOINT = re.compile(r"[\s$,;.]*(?:,|;|\band\b|\bor\b|\\\]|\\\)|\\\[|\\\()?[\s$,;]*(?:\band\b|\bor\b)?[\s$\\\[(]*")
ANCHOR = re.compile(r"\banswer\b|####", re.I)
PROSE = re.compile(r"(?<![\\A-Za-z])(?!(?:and|or|sqrt|infinity)\b)[A-Za-z]{3,}")
ONLY_WORDS = re.compile(r"\s*(?:\\text\{)?\s*[^\W\d_]{2,}(?:[\s'-]+[^\W\d_]+)*\s*\}?\s*\.?\s*")
PLAIN = {
    "\N{MINUS SIGN}": "-", "π": r"\pi ", "∞": r"\infty ", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "∪": r"\cup ",
    "×": r"\times ", "·": r"\cdot ", "±": r"\pm ", "°": r"^\circ ", "**": "^", r"\varnothing": r"\emptyset",
    r"\dfrac": r"\frac", r"\tfrac": r"\frac",
}  # fmt: skip
REWRITES = (
    (re.compile(r"(?<=\d)(?:\\[,;! ]|\{,\})(?=\d{3}(?!\d))"), ""),
    (re.compile(r"(?<![\\A-Za-z])pi(?![A-Za-z])"), r"\\pi "),
    (re.compile(r"(?<![\\A-Za-z])(?:oo|infinity|inf)(?![A-Za-z])"), r"\\infty "),
    (re.compile(r"(?:√|(?<![\\A-Za-z])sqrt)\s*\(([^()]*)\)|√\s*(\w+)"), r"\\sqrt{\1\2}"),
    (re.compile(r"(?<![A-Za-z\d.])(\d+(?:\.\d+)?)[eE]([-+]?\d+)(?!\w)"), r"\1 \\cdot 10^{\2}"),
)


def answer_in(completion: str) -> str | None:
    """The answer in a completion, without its marks; None if there is none."""
    if r"\boxed" in completion:
        return _boxes(completion)
    rest, anchored = completion, False
    for found in ANCHOR.finditer(completion):
        rest, anchored = completion[found.end() :], True
    pieces = _pieces(rest) if anchored else []
    if pieces:
        return pieces[0]
    pieces = _pieces(completion)
    return pieces[-1] if pieces else None


def as_latex(text: str) -> str:
    """`text` with plain signs and words of mathematics (pi, **, 1e-3, unicode) written in LaTeX."""
    for old, new in PLAIN.items():
        text = text.replace(old, new)
    for pattern, new in REWRITES:
        text = pattern.sub(new, text)
    return text.strip().rstrip(".")


def words_of(text: str) -> str | None:
    r"""An answer that is words and no mathematics ("no solution", `\text{Monday}`), in lower case; else None."""
    if not ONLY_WORDS.fullmatch(text) or re.fullmatch(_LETTERS, text.strip()):
        return None
    inner = re.sub(r"\\text\{|[{}.]", "", text)
    return " ".join(inner.casefold().split())


def _boxes(text: str) -> str | None:
    """The content of the last box, with the boxes before it that are joined to it; None if a box is not closed."""
    spans = boxes(text)
    if not spans:
        return None
    found = [spans[-1]]
    for span in reversed(spans[:-1]):
        between = text[span[1] + 1 : found[0][0]].removesuffix("{").rstrip().removesuffix(r"\boxed")
        if not (JOINT.fullmatch(between) and re.search(r",|;|\band\b|\bor\b", between)):
            break
        found.insert(0, span)
    answer = ", ".join(content for _, _, content in found)
    return answer if len(answer) <= LONGEST else None


def _pieces(text: str) -> list[str]:
    """All pieces of mathematics in order; pieces that are joined by a comma, "and" or "or" are one."""
    out: list[str] = []
    end = 0
    for found in _tokens(text):
        piece = next((g for g in (found["display"], found["bracket"], found["paren"], found["inline"]) if g), found[0])
        between = text[end : found.start()]
        if out and not between.strip(" \t"):
            out[-1] += between + piece
        elif out and re.fullmatch(r"\s*(?:,|;|,?\s+(?:and|or))\s*", between) and "\n" not in between:
            out[-1] += ", " + piece
        else:
            out.append(piece)
        end = found.end()
    return [piece for raw in out if len(raw) <= LONGEST and (piece := _tidy(raw))]


def _tokens(text: str) -> list[re.Match[str]]:
    """Matches of TOKEN. A dollar sign before prose is an amount of money, not the start of mathematics."""
    found, at = [], 0
    while match := TOKEN.search(text, at):
        at = match.end()
        if match["inline"] and PROSE.search(re.sub(_TEXT, "", match["inline"])):
            at = match.start() + 1
            continue
        found.append(match)
    return found


def _tidy(piece: str) -> str:
    """`piece` without unmatched brackets, articles, and marks at its ends; empty if no mathematics is left."""
    before = None
    while piece != before:
        before, piece = piece, piece.strip().strip(",;:*'_").strip()
        piece = re.sub(r"^(?:[aAI]\s*,?\s+)(?=\S)|(?<=\S)\s+[aI]$", "", piece)
        opened, closed = (sum(piece.count(c) for c in group) for group in (OPEN, CLOSE))
        if closed > opened and piece[-1:] in tuple(CLOSE):
            piece = piece[:-1]
        elif opened > closed and piece[:1] in tuple(OPEN):
            piece = piece[1:]
        piece = re.sub(r"^[=/]|[-+=/<>^(]$", "", piece)
    return piece if piece not in ("a", "I", "A") and re.search(r"[\w∞π]", piece) else ""

"""Runs the tests of a model's code, in an interpreter that never runs the code.

Names of the code that a test uses are requested over a `Link`. Builtins and modules of the standard library are the tests' own,
even if the code defines the same names.
"""

from __future__ import annotations

import builtins
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from runnel.llm.sandbox.link import CodeExit, Link, LinkLost
    from runnel.llm.sandbox.plain import Value
    from runnel.llm.sandbox.remote import Remote
else:
    from link import CodeExit, LinkLost
    from remote import Remote
ONLY_AST = 0x400
USUAL = frozenset(n for n in dir(builtins) if n not in ("sum", "max", "min", "pow", "filter", "divmod", "reversed", "round"))
"""Builtins that are never assumed to be the function under test."""
LOOKUPS = ("eval", "exec", "globals", "locals", "vars")
"""Builtins that look names up in texts or namespaces."""


def judge(link: Link, checks: list[str]) -> tuple[list[bool], list[str]]:
    """Run the checks: whether each one holds, and for each that does not, the reason ("" for the others)."""
    module = type(sys)("__main__")
    sys.modules["__main__"] = module
    sys.argv = ["check.py"]
    names = Names(link, module.__dict__, checks)
    reasons = []
    try:
        started = link.receive()
        wrong = "" if started == ["ready"] else "the code failed"
    except LinkLost as error:
        wrong = str(error)
    for check in checks:
        wrong = wrong or names.fetch()
        reason = wrong or execute(check, module.__dict__)
        wrong = wrong or link.lost
        reasons.append(reason or wrong)
    return [not reason for reason in reasons], reasons


class Names:
    """Puts the code's names into the tests' namespace."""

    def __init__(self, link: Link, names: dict[str, Value], checks: list[str]) -> None:
        self._link, self._names = link, names
        used, bases, bound, texts = used_names(checks)
        plain = {n for n in used if not hasattr(builtins, n)}
        modules = plain & bases & sys.stdlib_module_names
        shadows = set() if plain - modules - bound else used - plain - bound - USUAL
        hidden = set() if used.isdisjoint(LOOKUPS) else {n for n in texts if not hasattr(builtins, n)}
        self._wanted = sorted((plain | hidden) - modules | shadows)
        for name in modules:
            names[name] = __import__(name)
        self._given: dict[str, Value] = {}

    def fetch(self) -> str:
        """Request names that are missing, and values again, which may have changed; returns the error, if any."""
        kept = {n for n, v in self._given.items() if self._names.get(n) is not v or type(v) is Remote}
        wanted = [n for n in self._wanted if n not in kept and (n in self._given or n not in self._names)]
        if not wanted:
            return ""
        try:
            found = dict(self._link.ask("names", wanted))
        except LinkLost as error:
            return str(error)
        except Exception as error:  # raised in the code's process: the code may have damaged its own module
            return told(error)
        found = {n: found[n] for n in wanted if n in found}  # ignore other names, which the code may have sent
        self._given |= found
        self._names |= found
        self._link.named |= {v._remote_handle for n, v in found.items() if n[:1].isupper() and type(v) is Remote}
        return ""


def used_names(checks: list[str]) -> tuple[set[str], set[str], set[str], set[str]]:
    """Four sets of names in the checks: those read, those of which only attributes are read, those bound, words in texts."""
    found: dict[str, set[str]] = {"used": set(), "called": set(), "bound": set(), "texts": set()}
    for check in checks:
        try:
            tree = compile(check, "check.py", "exec", ONLY_AST, dont_inherit=True)
        except (SyntaxError, ValueError, MemoryError, RecursionError):
            continue
        _walk(tree, found, base=False)
    return found["used"], found["used"] - found["called"], found["bound"], found["texts"]


def _walk(node: Value, found: dict[str, set[str]], *, base: bool) -> None:
    kind = type(node).__name__
    if kind == "Name" and type(node.ctx).__name__ == "Load":
        found["used"].add(node.id)
        found["called"] |= set() if base else {node.id}
    elif kind == "Name":
        found["bound"].add(node.id)
    elif kind in ("FunctionDef", "AsyncFunctionDef", "ClassDef", "ExceptHandler"):
        found["bound"] |= {node.name} if node.name else set()
    elif kind == "alias":
        found["bound"].add((node.asname or node.name).partition(".")[0])
    elif kind == "Constant" and isinstance(node.value, str):
        found["texts"] |= set("".join(c if c.isidentifier() or c.isdigit() else " " for c in node.value[:10_000]).split())
    for field in node._fields:
        value = getattr(node, field, None)
        for part in value if isinstance(value, list) else [value]:
            if hasattr(part, "_fields"):
                _walk(part, found, base=kind == "Attribute")


def execute(check: str, names: dict[str, Value]) -> str:
    """Run one check: "" if it holds, else the reason."""
    try:
        exec(compile(check, "check.py", "exec", dont_inherit=True), names)
    except CodeExit:
        return "the code asked to end the program"
    except SystemExit as stop:
        return "" if stop.code in (None, 0) else f"exit code {stop.code}"
    except LinkLost as error:
        return str(error)
    except BaseException as error:
        return told(error)
    return ""


def told(error: BaseException) -> str:
    """An error in one line, which is also written to stderr."""
    try:
        text = f"{type(error).__name__}: {error}".rstrip(": ")[:300]
    except Exception:  # the text of an error may call the code, which may fail
        text = type(error).__name__
    os.write(2, text.encode(errors="replace") + b"\n")
    return text

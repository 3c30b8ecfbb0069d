"""Exact arithmetic on whole numbers: the evaluator behind the tool `calculator`, and problems of growing length."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from runnel.core.contracts.chat import OpenTool, Tool, ToolFailure
from runnel.core.state import State

MAX_LETTERS = 200
MAX_BITS = 2048
"""Of any number on the way: a longer one is an error, and never computed."""
SIGNS = {"×": "*", "·": "*", "÷": "/", "−": "-", "^": "**"}
ALLOWED = re.compile(r"[0-9+\-*/%() ]+")
PLAIN: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}
DIVISIONS = (ast.Div, ast.FloorDiv, ast.Mod)
LEVELS = 4
SCHEMA = {
    "type": "object",
    "properties": {"expression": {"type": "string", "description": "for example (12 + 30) * 4"}},
    "required": ["expression"],
}


def evaluate(expression: str) -> int:
    """The value of an expression of whole numbers with + - * / // % ** and parentheses. `/` must leave no rest.

    The expression is parsed and walked, never run. What cannot be computed is a `ToolFailure` that says why.

    >>> evaluate("(12 + 30) * 4"), evaluate("2 ** 10 // 3"), evaluate("1,200 / 6")
    (168, 341, 200)
    """
    text = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", expression.strip())
    for sign, plain in SIGNS.items():
        text = text.replace(sign, plain)
    if len(text) > MAX_LETTERS:
        raise ToolFailure(f"the expression is longer than {MAX_LETTERS} letters", kind="too_long")
    if not ALLOWED.fullmatch(text):
        raise ToolFailure("an expression has whole numbers, + - * / // % ** and parentheses, and nothing else")
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, MemoryError, RecursionError) as error:  # the last two: parentheses that are nested too deep
        raise ToolFailure(f"this is no expression: {text}") from error
    return _value(tree.body)


def _value(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return _bounded(node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        value = _value(node.operand)
        return -value if isinstance(node.op, ast.USub) else value
    if not isinstance(node, ast.BinOp):
        raise ToolFailure("an expression has whole numbers, + - * / // % ** and parentheses, and nothing else")
    left, right = _value(node.left), _value(node.right)
    if isinstance(node.op, DIVISIONS):
        return _divided(node.op, left, right)
    if isinstance(node.op, ast.Pow):
        return _power(left, right)
    return _bounded(PLAIN[type(node.op)](left, right))


def _divided(op: ast.operator, left: int, right: int) -> int:
    if right == 0:
        raise ToolFailure("division by zero")
    if isinstance(op, ast.Div) and left % right:
        raise ToolFailure(f"{left} / {right} is no whole number; // divides and rounds down, % is the rest")
    return left % right if isinstance(op, ast.Mod) else left // right


def _power(base: int, exponent: int) -> int:
    if exponent < 0:
        raise ToolFailure("a negative exponent gives no whole number")
    if exponent * max(1, (abs(base) - 1).bit_length()) > MAX_BITS:  # before the power is computed
        raise ToolFailure("the number is too large")
    return _bounded(base**exponent)


def _bounded(value: int) -> int:
    if value.bit_length() > MAX_BITS:
        raise ToolFailure("the number is too large")
    return value


# ------------------------------------------------------------------------------------------------------------ the tool
class OpenCalculator:
    """The tool in one conversation. `heard` is told of each call."""

    def __init__(self, heard: Callable[[], None] | None = None) -> None:
        self._heard = heard

    def call(self, arguments: Mapping[str, Any]) -> str:
        expression = arguments.get("expression")
        if not isinstance(expression, str):
            raise ToolFailure("give the argument expression, a text", kind="arguments")
        value = evaluate(expression)
        if self._heard is not None:
            self._heard()
        return str(value)

    def get_state(self) -> State:
        """Nothing is kept from call to call: calls are counted by who is told of them."""
        return {}

    def set_state(self, state: State) -> None: ...

    def close(self) -> None: ...


def calculator_tool(heard: Callable[[], None] | None = None) -> Tool:
    """The tool `calculator`. `heard` is called at each call that gave a number."""

    def opened() -> OpenTool:
        return OpenCalculator(heard)

    return Tool("calculator", "Computes an expression of whole numbers exactly.", SCHEMA, opened, lane="inline")


# ------------------------------------------------------------------------------------------------------------ problems
def problem(rng: np.random.Generator, level: int) -> str:
    """An expression: of level 1, a product of two numbers of three digits. Each level adds a sum or a difference, and a digit
    to each number (up to five); from level 3 on, the whole is multiplied once more.

    >>> from runnel.core.rng import make_rng
    >>> problem(make_rng(0, "example"), 1).count("*")
    1
    """
    digits = min(level + 2, 5)
    parts = [_number(rng, digits), _number(rng, digits)]
    text = f"{parts[0]} * {parts[1]}"
    for step in range(1, level):
        sign, other = "+-"[int(rng.integers(2))], _number(rng, digits)
        text = f"{text} {sign} {other}"
        if step % 2 == 0:
            text = f"({text}) * {_number(rng, 3)}"
    return text


def _number(rng: np.random.Generator, digits: int) -> int:
    return int(rng.integers(10 ** (digits - 1), 10**digits))

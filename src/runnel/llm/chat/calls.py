"""How the environments and tools of conversations are called: where each call runs, and how long it may take."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from runnel.core.calls.pool import CallSpec
from runnel.llm.chat.config import TalkConfig

NUM_THREADS = 64
"""Calls of environments at once, and of tools, that run in threads."""
CLOSE = "talk.close"
"""Tools are closed in threads, whatever their lane: an end may take its time."""


def call_specs(talk: TalkConfig) -> list[CallSpec]:
    """`talk.step/LANE` calls environments, `talk.tool/LANE` tools. Each of them calls the function that it is given."""
    out = []
    for what, limit in (("step", talk.step_timeout_s), ("tool", talk.tool_timeout_s)):
        field = f"talk.{what}_timeout_s"
        out += [
            CallSpec(f"talk.{what}/inline", _plainly, run="inline"),
            CallSpec(f"talk.{what}/thread", _plainly, run="thread", workers=NUM_THREADS, timeout_s=limit, limit_field=field),
            CallSpec(f"talk.{what}/async", _awaited, run="async", timeout_s=limit, limit_field=field),
        ]
    out.append(CallSpec(CLOSE, _plainly, run="thread", workers=NUM_THREADS, timeout_s=limit, limit_field=field))
    return out


def _plainly(fn: Callable[..., Any], /, *args: object) -> Any:
    return fn(*args)


async def _awaited(fn: Callable[..., Any], /, *args: object) -> Any:
    made = fn(*args)
    return await made if inspect.isawaitable(made) else made

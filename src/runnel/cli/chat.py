"""`runnel chat`: talk to the policy of a run or of a model, or watch it play the run's environment."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

from rich.console import Console

from runnel.cli.arguments import add_best, add_trust, make_parser
from runnel.core.contracts.chat import Message
from runnel.core.errors import ConfigError, DataError
from runnel.llm.chat.session import Chat, Happened
from runnel.llm.policy import ChatPolicy, model_policy
from runnel.run import api
from runnel.track.folder import RunFolder

ABOUT = """Talk to the policy of a run, or to a model (a folder, a hub id or smollm2).

Each line is a message. /system TEXT begins anew with that system text, /reset begins anew, /quit ends. Ctrl-C stops a reply.
With --play, the policy plays the environment that its run was trained in, and you watch. Where the input is no terminal, each
of its lines is a message, and only replies are printed.

  runnel chat runs/a-run
  runnel chat smollm2 --tools calculator my_tools.py:lookup
  runnel chat runs/a-run --play 3
"""
QUIT, RESET, SYSTEM = "/quit", "/reset", "/system"
COMMANDS = f"{SYSTEM} TEXT, {RESET}, {QUIT}"
ASKS = "you> "


def chat(args: list[str]) -> int:
    """Talk to a policy, or watch it play."""
    parser = make_parser("chat", ABOUT)
    parser.add_argument("policy", help="a run's folder, a model's folder, a hub id or smollm2")
    about = "watch N conversations of the run's own environment (1)"
    parser.add_argument("--play", type=int, nargs="?", const=1, default=0, metavar="N", help=about)
    tools = "what it may call: built-in tools, path/to/file.py:my_tool (those of the run)"
    parser.add_argument("--tools", nargs="*", default=None, metavar="TOOL", help=tools)
    parser.add_argument("--system", default="", metavar="TEXT", help="the system text (none)")
    parser.add_argument("--max-tokens", type=int, default=None, metavar="N", help="longest reply (that of the run; else 512)")
    parser.add_argument("--sample", action="store_true", help="draw replies at random, and not the likeliest tokens")
    add_best(parser)
    add_trust(parser)
    parsed = parser.parse_args(args)
    _check(parsed)
    policy = _policy(parsed)
    if parsed.play:
        return _watch(policy, parsed)
    with closing(
        policy.converse(tools=parsed.tools, system=parsed.system, max_tokens=parsed.max_tokens, deterministic=not parsed.sample)
    ) as talk:
        return _converse(talk) if sys.stdin.isatty() else _answer_lines(talk)


def _check(parsed: argparse.Namespace) -> None:
    """Refuse numbers that mean nothing, and flags that watching would not read."""
    if parsed.play < 0:
        raise ConfigError("play", parsed.play, "watch at least one conversation, or none (0)")
    if parsed.max_tokens is not None and parsed.max_tokens < 1:
        raise ConfigError("max_tokens", parsed.max_tokens, "use at least 1")
    for name in ("tools", "system", "max_tokens"):
        if parsed.play and getattr(parsed, name):
            raise ConfigError(name, getattr(parsed, name), "the environment of the run decides it; leave it out with --play")


def _policy(parsed: argparse.Namespace) -> ChatPolicy:
    """The policy of a run, or of a model that is no run's."""
    if not RunFolder(Path(parsed.policy)).has_run():
        for name in ("best", "trust", "play"):
            if getattr(parsed, name):
                fix = f"is of runs, and {parsed.policy} is none; give the folder of a run"
                raise ConfigError(name, getattr(parsed, name), fix)
        return _of_model(parsed.policy)
    own = RunFolder.open(parsed.policy).read_config().get("tools")
    # tools that are given replace those of the run, whose code then does not run
    replaced = {"tools": tuple(parsed.tools)} if parsed.tools and own else {}
    policy = api.load(parsed.policy, best=parsed.best, trust=parsed.trust, **replaced)
    if not isinstance(policy, ChatPolicy):
        raise ConfigError("run", parsed.policy, "its policy is no language model; use rl.load(run).act(obs)")
    return policy


def _of_model(name: str) -> ChatPolicy:
    try:
        return model_policy(name)
    except ConfigError as error:
        if error.field != "model":
            raise
        raise ConfigError("policy", name, f"is no run; as a model: {error.fix}") from error


# ----------------------------------------------------------------------------------------------------------------- talking
def _answer_lines(talk: Chat) -> int:
    """Each line of the input is a message; only replies are printed."""
    for line in sys.stdin:
        text = line.rstrip("\n")
        if text.strip() == QUIT:
            break
        if _is_command(talk, text):
            continue
        if text.strip():
            print(_plain(_last(talk.say(text))), flush=True)
    return 0


def _converse(talk: Chat) -> int:
    console = Console(soft_wrap=True, highlight=False, markup=False)
    console.print(f"{COMMANDS}; Ctrl-C stops a reply", style="dim")
    for text in _asked():
        if text.strip() == QUIT:
            break
        if not text.strip() or _is_command(talk, text):
            continue
        try:
            talk.say(
                text,
                on_text=lambda piece: console.print(_plain(piece), end=""),
                on_message=lambda message: _show(console, message),
            )
        except KeyboardInterrupt:
            console.print(" (stopped)", style="dim")
        except DataError as error:
            console.print(str(error), style="dim")
    return 0


def _asked() -> Iterator[str]:
    """Lines that the person types, until there are no more, or Ctrl-C at the prompt."""
    while True:
        try:
            yield input(ASKS)
        except (EOFError, KeyboardInterrupt):
            print()
            return


def _is_command(talk: Chat, text: str) -> bool:
    """Do what a command says; whether it was one. A slash that begins no command begins a message."""
    word, _, rest = text.strip().partition(" ")
    if word == SYSTEM:
        talk.reset(system=rest.strip())
    elif word == RESET:
        talk.reset()
    return word in (SYSTEM, RESET)


def _show(console: Console, message: Message) -> None:
    """End the line of a reply, and show its calls, or the result of one."""
    if message["role"] == "assistant":
        console.print()
    for line in _lines_of_calls(message):
        console.print(line, style="dim")


def _lines_of_calls(message: Message) -> Iterator[str]:
    if message["role"] == "tool":
        yield f"  = {_plain(str(message['content']))}"
    for call in message.get("tool_calls", ()):
        yield _plain(f"  {call['function']['name']}({call['function'].get('arguments', {})})")
    for failure in message.get("tool_errors", ()):
        yield _plain(f"  a call that cannot be read: {failure['text']}")


def _last(messages: list[Message]) -> str:
    """The text of the last reply."""
    return next((str(m["content"]) for m in reversed(messages) if m["role"] == "assistant"), "")


def _plain(text: str) -> str:
    """A text that moves no cursor and changes no colour: a model may write anything."""
    return "".join(c for c in text if c.isprintable() or c in "\n\t")


# ---------------------------------------------------------------------------------------------------------------- watching
def _watch(policy: ChatPolicy, parsed: argparse.Namespace) -> int:
    """Play conversations of the run's environment, and print them as they go on."""
    console = Console(soft_wrap=True, highlight=False, markup=False, width=None if sys.stdout.isatty() else 10_000)
    for number in range(parsed.play):
        console.print(f"{os.linesep if number else ''}conversation {number + 1} of {parsed.play}", style="bold")
        total: dict[str, float] = {}
        for happened in policy.play(number, deterministic=not parsed.sample):
            _tell(console, happened, total)
        console.print(f"earned {_rewards(total) or 'nothing'}", style="bold")
    return 0


def _tell(console: Console, happened: Happened, total: dict[str, float]) -> None:
    who = "" if happened.agent == "agent" else f"{happened.agent} "
    if happened.message is not None:
        role, content = happened.message["role"], _plain(str(happened.message["content"]))
        console.print(f"{who}{role}: {content}", style="dim" if role == "tool" else None)
        if role == "assistant":
            for line in _lines_of_calls(happened.message):
                console.print(line, style="dim")
    if happened.rewards:
        console.print(f"  {who}earned {_rewards(happened.rewards)}", style="dim")
        for name, value in happened.rewards.items():
            total[name] = total.get(name, 0.0) + value
    if happened.reason:
        console.print(f"  {who}ended: {happened.reason}", style="dim")


def _rewards(rewards: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:+.3g}" for name, value in rewards.items())

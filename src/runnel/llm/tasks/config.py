"""The configuration of prompts from data: columns, system prompt, suffix, and rewards."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from runnel.core.bounds import bounded, check_bounds
from runnel.core.errors import ConfigError, UnusedSettingError
from runnel.core.resuming import OnResume, may_change, stays
from runnel.llm.rewards.components import BUILTIN, RewardComponent


@dataclass(frozen=True)
class DataConfig:
    """Prompts from files and generators. A task of your own in Python makes its examples itself, and uses only `plain`,
    `max_prompt`, `reward_timeout_s` and `background_rewards`."""

    on_resume: ClassVar[OnResume] = may_change(
        "reward_timeout_s", "background_rewards", then="counts from the next reward on"
    ) | stays(
        *("prompt", "answer", "reward", "options", "extract", "system", "suffix", "plain", "max_prompt"),
        *("eval_path", "eval_share", "num_train", "num_eval", "settings"),
        why="a run is of one task",
    )

    prompt: str = "prompt"
    """Column with the prompt: text, or a list of messages."""
    answer: str = "answer"
    """Column with the expected answer; the reward gets it as `answer`, and demonstrations imitate it."""
    reward: tuple[str, ...] = ()
    """Rewards of data from files, by name (exact, math, python_tests, ...; file.py:function), each with an optional weight as
    in format=0.1. Default: exact."""
    options: tuple[str, ...] = ()
    """Options of those rewards, as name.option=value: length.target=40, regex.pattern=[0-9]+."""
    reward_timeout_s: float = bounded(30.0, above=0)
    """Most seconds that a reward may take on one group; one that takes longer is a counted failure. Any task."""
    background_rewards: bool = False
    """In one process too, go on generating while rewards are computed: faster where they are slow, but their order then depends
    on time (across processes that is so in any case, unless `deterministic` is set). Any task."""
    extract: str = ""
    """Where the answer stands in a completion: all, last_line, last_number, boxed, tag:NAME, after:TEXT; several with |."""
    system: str = ""
    """System prompt that stands before every prompt."""
    suffix: str | None = None
    """Text behind every prompt. Default: none for files; for reasoning_gym, how to mark the answer."""
    plain: bool = False
    """Give the model the text of a prompt as it is, without a chat template: for base models."""
    max_prompt: int = bounded(0, at_least=0)
    """Longest prompt in tokens; longer ones are skipped, and counted as prompt_too_long. 0: from a sample of prompts."""
    eval_path: str = ""
    """File with the held-out prompts; empty holds out a share of the rows."""
    eval_share: float = bounded(0.1, above=0, below=1)
    """Share of the rows that is held out, by a hash of their prompt."""
    num_train: int = bounded(10000, at_least=1)
    """Train prompts of a generated task (they are made when they are first played)."""
    num_eval: int = bounded(256, at_least=1)
    """Held-out prompts of a generated task."""
    settings: tuple[str, ...] = ()
    """Settings of a generated task's own, or options of what `chat` names, as name=value."""

    def __post_init__(self) -> None:
        check_bounds(self, "data.")
        self.parsed_settings()
        self._options()

    def absolute(self) -> DataConfig:
        """A copy with absolute paths, so that a run can be resumed from any folder."""
        return replace(
            self,
            reward=tuple(_absolute(text) for text in self.reward),
            options=tuple(_absolute(text, after="=") for text in self.options),
            eval_path=str(Path(self.eval_path).resolve()) if self.eval_path else "",
        )

    def components(self, default: str = "exact") -> list[RewardComponent]:
        """The rewards, each with its options, and with `extract` if it looks for an answer."""
        out, given = [], self._options()
        for text in self.reward or (default,):
            fn, _, weight = text.rpartition("=") if "=" in text else (text, "", "1")
            name = fn.rpartition(":")[2].rpartition("/")[2]
            part, chosen = RewardComponent(name, fn, _weight(text, weight)), given.pop(name, {})
            known = part.known_options() if chosen or (self.extract and fn in BUILTIN) else ()
            if wrong := sorted(chosen.keys() - set(known)) if known is not None else []:
                raise ConfigError(
                    "data.options", f"{name}.{wrong[0]}", f"the reward has no such option; it has {listed(known)}"
                )
            options = {"extract": self.extract} if self.extract and "extract" in (known or ()) else {}
            options |= chosen
            out.append(replace(part, options=options, tokens=options.get("unit") == "tokens"))
        if given:
            names = ", ".join(part.name for part in out)
            raise ConfigError("data.options", sorted(given), f"there is no such reward; data.reward has {names}")
        if self.extract and not any(part.options.get("extract") == self.extract for part in out):
            why = f"of {listed(part.name for part in out)} none looks for an answer by it (exact and python_tests do)"
            raise UnusedSettingError("data.extract", self.extract, f"{why}; leave it empty")
        return out

    def _options(self) -> dict[str, dict[str, Any]]:
        """Options by reward."""
        out: dict[str, dict[str, Any]] = {}
        for text in self.options:
            name, dot, rest = text.partition(".")
            if not dot:
                raise ConfigError("data.options", text, "write reward.option=value")
            option, value = _setting(rest)
            out.setdefault(name, {})[option] = value
        return out

    def parsed_settings(self) -> dict[str, object]:
        """`settings` as names and values.

        >>> DataConfig(settings=("max_animals=3", "flag=true", "word=abc")).parsed_settings()
        {'max_animals': 3, 'flag': True, 'word': 'abc'}
        """
        return dict(_setting(text) for text in self.settings)


def listed(names: Iterable[str] | None) -> str:
    """Names in a sentence."""
    return ", ".join(names or ()) or "none"


def _absolute(text: str, after: str = "") -> str:
    """`text` with the path in `path.py:name` made absolute; the path starts behind `after`."""
    start = text.find(after) + len(after) if after else 0
    path, found, name = text[start:].partition(".py:")
    return f"{text[:start]}{Path(path + '.py').resolve()}:{name}" if found else text


def _weight(text: str, weight: str) -> float:
    try:
        return float(weight)
    except ValueError as error:
        raise ConfigError("data.reward", text, "write a name, or name=weight with a number") from error


def _setting(text: str) -> tuple[str, object]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ConfigError("data.settings", text, "write name=value")
    if value.lower() in ("true", "false"):
        return name, value.lower() == "true"
    for kind in (int, float):
        try:
            return name, kind(value)
        except ValueError:
            continue
    return name, value

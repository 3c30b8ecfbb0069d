"""What a budget comes to: the steps that are really played, and schedules that jump when a run goes on with another budget.

A schedule is a function of the share of the budget that is spent. With a larger budget that share is smaller: from then on the
run has the values that it would have had with that budget from its start, and not those that it had when it ended.
"""

from __future__ import annotations

from collections.abc import Iterator

from runnel.core import schedule
from runnel.core.config import settings_of
from runnel.core.errors import ConfigError
from runnel.flow.staleness import LagRule, ReplayRatioRule
from runnel.flow.workers.trainer import Budget
from runnel.graphs.experiment import Experiment
from runnel.graphs.run_config import BUDGETS, RunConfig
from runnel.run.checkpoint import Manifest

MUCH = 1.1
"""A budget that is exceeded by more than this factor is warned of."""


def rounded_up(experiment: Experiment) -> tuple[str, bool]:
    """What to tell where more steps are played than `total_steps`, because an update takes whole segments, and whether that is
    much more."""
    asked, policy = experiment.config.total_steps, experiment.staleness.get("trajectories")
    if asked is None or experiment.config.total_updates is not None or not isinstance(policy, LagRule | ReplayRatioRule):
        return "", False
    sizes = experiment.stream("trajectories").sizes
    if not {"T", "B"} <= set(sizes):
        return "", False
    steps, shape = sizes["T"] * sizes["B"], f"{sizes['B']} x {sizes['T']}"
    if isinstance(policy, ReplayRatioRule):
        played = policy.segments_for(asked) * steps
        why = f"actors play segments of {shape} (environments, steps), and the last one pays for an update"
    else:
        batch = policy.batch * steps
        played = -(-asked // batch) * batch
        why = f"an update takes {batch:,}, {policy.batch} x {shape} (segments, environments, steps)"
    text = f"total_steps = {asked:,} comes to {played:,}: {why}; num_envs and num_steps set that"
    return (text if played > asked else ""), played > MUCH * asked


def moved_schedules(before: RunConfig, after: RunConfig, manifest: Manifest) -> list[str]:
    """What to tell of each schedule that has another value with the budget of `after` than with that of `before`, at a
    checkpoint. A schedule that was itself changed has the value that the user wants."""
    then, now = (_progress(config, manifest) for config in (before, after))
    kept = dict(_schedules(after))
    budget = ", ".join(f"{name} = {getattr(after, name):,}" for name in BUDGETS if getattr(after, name) is not None)
    return [
        f"{name} jumps from {old:.3g} to {new:.3g}: {text} is over the whole budget, now {budget}; to go on from where it was, "
        f"give {name} anew"
        for name, text in _schedules(before)
        if kept.get(name) == text and (old := schedule.at(text, then)) != (new := schedule.at(text, now))
    ]


def _progress(config: RunConfig, manifest: Manifest) -> float:
    budget = Budget(total_steps=config.total_steps, total_updates=config.total_updates, total_tokens=config.total_tokens)
    return budget.progress(steps=manifest["steps"], updates=manifest["version"], tokens=manifest["tokens"])


def _schedules(config: RunConfig) -> Iterator[tuple[str, str]]:
    """Dotted name and text of every setting that is a schedule."""
    for setting in settings_of(config):
        if isinstance(text := setting.value, str) and text.strip().startswith("linear(") and _is_schedule(text):
            yield setting.name, text


def _is_schedule(text: str) -> bool:
    try:
        schedule.parse(text)
    except ConfigError:
        return False
    return True

"""The options of `runnel tune`, and the settings of a study as `tune.json` holds them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Literal

from runnel.core.bounds import bounded, check_bounds
from runnel.core.config import differences, override, to_data
from runnel.core.errors import ConfigError, UnusedSettingError
from runnel.core.framing import Message
from runnel.core.state import State
from runnel.graphs.env_config import EnvConfig
from runnel.graphs.experiment import Experiment
from runnel.graphs.run_config import BUDGETS, RunConfig
from runnel.graphs.team_config import TeamConfig
from runnel.run import registry
from runnel.run.live_settings import check_change, live_owners
from runnel.tune.defaults import default_space
from runnel.tune.job import UNITS
from runnel.tune.objective import Summary
from runnel.tune.space import Param, Value, read_space

FIRST_SEED = 10_000
"""Tuning seeds count up from here, test seeds from 1: no run that chose the settings is among those that judge them."""
MAY_CHANGE = ("trials", "workers", "test_seeds", "on")
"""Options that may be others when a study goes on."""


@dataclass(frozen=True)
class TuneConfig:
    """Options of a study, beside the recipe's config."""

    search: tuple[str, ...] = ()
    """What to try: words such as "ppo.lr=log(1e-5, 1e-2)", "ppo.gamma=0.9..0.999", "ppo.clip_range={0.1, 0.2}",
    "num_envs=int(4, 64)", or one TOML file of them. Empty: a space that suits the algorithm."""
    trials: int = bounded(20, at_least=1)
    """Trials in all; of a grid at most so many."""
    sampler: Literal["tpe", "random", "grid"] = "tpe"
    """Who chooses: Optuna's TPE, chance, or every point of a grid."""
    grid_points: int = bounded(4, at_least=1)
    """Values of each range in a grid."""
    pruner: Literal["none", "median", "hyperband"] = "median"
    """Who ends trials early: median compares with others at the same point, hyperband lets the best third go on."""
    scheduler: Literal["trials", "pbt"] = "trials"
    """trials: one run (or `seeds_per_trial`) for each setting. pbt: population based training, on live runs."""
    members: int = 8
    """Members of the population (pbt)."""
    interval: int = bounded(0, at_least=0)
    """Steps, updates or tokens, as the budget, between two exchanges in a population; 0 is a tenth of the budget."""
    metric: str = "eval"
    """What trials are compared by: eval (mean return of evaluations), return (of training episodes), or any logged number."""
    summary: Summary = "last"
    """How a run's numbers become one: the last, the best moving mean of three, or the mean over the run."""
    direction: Literal["maximize", "minimize"] = "maximize"
    """Whether more is better."""
    seeds_per_trial: int = bounded(1, at_least=1)
    """Train each setting on so many tuning seeds, and take the mean."""
    test_seeds: int = bounded(0, at_least=0, below=FIRST_SEED, note="tuning seeds begin there")
    """At the end, train the winner on so many fresh seeds: the number to publish."""
    workers: int = bounded(1, at_least=1)
    """Trials at the same time, each in a process of its own."""
    on: Literal["local", "ray"] = "local"
    """Where trials run: on this machine, or on the Ray cluster of `cluster.address`."""
    search_seed: int = bounded(0, at_least=0)
    """Seed of the search itself: of what is tried, not of the runs."""

    def check(self) -> None:
        """Raise a `ConfigError` for what cannot work."""
        check_bounds(self)
        if self.scheduler == "pbt" and self.members < 2:
            raise ConfigError("members", self.members, "a population has at least 2")
        if self.scheduler == "pbt" and self.seeds_per_trial > 1:
            raise ConfigError("seeds_per_trial", self.seeds_per_trial, "each member of a population has one seed; use 1")


@dataclass(frozen=True)
class Setup:
    """The settings of a study: recipe, config, options and space, checked against each other."""

    recipe: registry.Recipe
    config: RunConfig
    options: TuneConfig
    space: dict[str, Param]
    subject: str

    @property
    def budget(self) -> str:
        """The budget that the config sets: `total_steps`, `total_updates` or `total_tokens`."""
        return next(name for name in BUDGETS if getattr(self.config, name))

    @property
    def total(self) -> int:
        """The budget of one run."""
        return int(getattr(self.config, self.budget))

    @property
    def algorithm(self) -> str:
        return "pbt" if self.options.scheduler == "pbt" else self.options.sampler

    @property
    def maximise(self) -> bool:
        return self.options.direction == "maximize"

    @property
    def seeds(self) -> list[int]:
        """Tuning seeds: of each trial, or one for each member."""
        num = self.options.members if self.options.scheduler == "pbt" else self.options.seeds_per_trial
        return [FIRST_SEED + i for i in range(num)]

    @property
    def interval(self) -> int:
        return self.options.interval or -(-self.total // 10)

    def order(self, runs: list[Message], *, log: Path, after: int = 0) -> Message:
        """The order for the process of a trial (`job.py`)."""
        return {
            "recipe": self.recipe.name,
            "config": to_data(self.config),
            "space": self._space(),
            "runs": runs,
            "metric": self.options.metric,
            "summary": self.options.summary,
            "maximise": self.maximise,
            "unit": UNITS[self.budget],
            "total": self.total,
            "after": after,
            "population": self.options.scheduler == "pbt",
            "log": str(log),
        }

    def to_data(self) -> State:
        """The content of tune.json."""
        own = {f.name for f in dataclasses.fields(TuneConfig)} - {"search"}
        options = {k: v for k, v in to_data(self.options).items() if k in own}
        return {
            "recipe": self.recipe.name,
            "subject": self.subject,
            "config": to_data(self.config),
            "options": options,
            "space": self._space(),
        }

    def _space(self) -> State:
        return {name: p.to_data() for name, p in self.space.items()}


def make_setup(recipe: str, config: RunConfig | Mapping[str, object], options: TuneConfig) -> Setup:
    """The setup of a new study; a `ConfigError` for settings that cannot work. `config` may also be settings of the recipe."""
    options.check()
    found = registry.load_recipe(recipe)
    if isinstance(config, Mapping):
        config = registry.configure(found, config)
    _check_free(found, config)
    if config.track == found.Config().track:
        config = dataclasses.replace(config, track=())
    config = registry.absolute_paths(dataclasses.replace(config, out="", name="", tags=()))
    space = read_space(options.search, config) if options.search else default_space(found)
    _check_unset(space, found, config)
    return _checked(found, config, options, space)


def named_in(data: State) -> State:
    """The settings in tune.json that may name code: those that all trials share, and those that are searched."""
    return {**data["config"], "space": data["space"]}


def read_setup(data: State, changes: Mapping[str, object]) -> Setup:
    """The setup of an existing study. `changes` are new values of options that may change."""
    recipe = registry.load_recipe(data["recipe"])
    config = override(recipe.Config(), data["config"])
    options = override(override(TuneConfig(), data["options"]), changes)
    options.check()
    space = {name: Param.from_data(name, p) for name, p in data["space"].items()}
    return Setup(recipe, config, options, space, data["subject"])


def check_same(data: State, setup: Setup, folder: Path) -> None:
    """Refuse other settings for an existing study: its trials could not be compared."""
    free = {f"options.{name}" for name in MAY_CHANGE}
    for name, (before, after) in differences(data, setup.to_data()).items():
        if name not in free:
            fix = f"{folder} was made with {before!r}; keep it, or give another --out"
            raise ConfigError(name.split(".", 1)[-1], after, fix)


def _check_free(recipe: registry.Recipe, config: RunConfig) -> None:
    """Refuse settings that a study chooses itself."""
    default = recipe.Config()
    if config.seed != default.seed:
        fix = "a study has seeds of its own; use --seeds-per-trial, and --search-seed for the search"
        raise ConfigError("seed", config.seed, fix)
    if config.tags != default.tags:
        raise ConfigError("tags", config.tags, "a study tags its runs itself: tuning, test")


def _check_unset(space: Mapping[str, Param], recipe: registry.Recipe, config: RunConfig) -> None:
    begins = registry.begin(recipe, {name: getattr(config, name) for name in ("env", "zoo") if hasattr(config, name)})
    changed = differences(to_data(begins), to_data(config))
    for name in space:
        if name in changed:
            raise ConfigError(name, changed[name][1], "is both searched and set; do one of them")


def _checked(recipe: registry.Recipe, config: RunConfig, options: TuneConfig, space: dict[str, Param]) -> Setup:
    """Build the experiment at the ends of each range, so that values that cannot work are refused before the first trial."""
    config.check()
    if options.metric == "eval" and not config.eval.episodes:
        raise ConfigError("metric", "eval", "evaluation is off (eval.episodes 0); turn it on, or use --metric return")
    if not config.checkpoint.whole and options.scheduler == "pbt":
        raise ConfigError("checkpoint.every", "never", "members of a population take over each other's checkpoints; use 0")
    if options.scheduler == "pbt":
        _check_interval(config, options.interval)
    if options.summary != "last" and options.scheduler == "pbt":
        raise ConfigError("summary", options.summary, "members of a population are judged by their last number; use last")
    if options.summary != "last" and options.metric == "eval" and not config.eval.every:
        raise ConfigError("summary", options.summary, "needs evaluations on the way; set --eval.every")
    base = registry.build(recipe.name, config)
    if options.scheduler == "pbt":
        space = _live_only(space, config, given=bool(options.search))
    if options.metric == "eval" and base.evaluation is None:
        raise ConfigError("metric", "eval", "this recipe has no evaluation; use --metric return, or a number that it logs")
    all_of = list(space.values())
    for param in all_of:
        for value in param.ends():
            _build_at(param, value, recipe, config, [p for p in all_of if p is not param])
        _check_inside(param, recipe, config, all_of)
    return Setup(recipe, config, options, space, base.title)


def _check_interval(config: RunConfig, interval: int) -> None:
    """Refuse points of which several lie in one round of all environments: a member would take over again and again there."""
    if interval and config.total_steps and isinstance(config, EnvConfig | TeamConfig) and interval < config.batch_steps:
        fix = f"counts steps, as the budget, and all environments make {config.batch_steps} of them at a time; use a multiple"
        raise ConfigError("interval", interval, fix)


def _live_only(space: dict[str, Param], config: RunConfig, *, given: bool) -> dict[str, Param]:
    """The part of a default space that the members of a population can change on the way. Of a space that the user has `given`,
    a setting that may not change is refused."""
    known, found = live_owners(config), dict(space)
    for name, param in space.items():
        try:
            for one, other in permutations(param.ends(), 2):
                check_change(override(config, {name: one}), name, other, known=known, members=())
        except UnusedSettingError:
            continue  # it counts beside another one of the space, or is refused with it
        except ConfigError as error:
            if given:
                raise ConfigError(
                    "search", name, f"members of a population change it on the way, and it {error.fix}"
                ) from error
            del found[name]
    return found


def _check_inside(param: Param, recipe: registry.Recipe, config: RunConfig, space: Sequence[Param]) -> None:
    """Refuse a range in which some numbers cannot work (they do not divide a batch); the error lists those that do."""
    works, refused, why = [param.ends()[0]], [], ""
    for value in param.inside():
        try:
            _build_at(param, value, recipe, config, [p for p in space if p is not param])
            works.append(value)
        except ConfigError as error:
            refused.append(value)
            why = why or str(error)
    if refused:
        fix = f"{param.name} cannot be {', '.join(map(str, refused))} ({why}); search what works: "
        choices = ", ".join(map(str, [*works, param.ends()[-1]]))
        raise ConfigError("search", f"{param.name}=int({param.low}, {param.high})", f"{fix}{param.name}={{{choices}}}")


def _build_at(
    param: Param, value: Value, recipe: registry.Recipe, config: RunConfig, others: Sequence[Param] = ()
) -> Experiment:
    """The experiment with one value of a searched field. An error names that value.

    If the field counts only beside a value of another searched field (`others`), the experiment has both."""
    try:
        return registry.build(recipe.name, override(config, {param.name: value}))
    except UnusedSettingError:
        for beside in ({other.name: end} for other in others for end in other.ends()):
            try:
                return registry.build(recipe.name, override(config, {**beside, param.name: value}))
            except ConfigError:
                continue
        raise
    except ConfigError as error:
        if error.field == param.name:
            raise
        raise ConfigError(error.field, error.value, f"{error.fix} (searched: {param.name} = {value!r})") from error

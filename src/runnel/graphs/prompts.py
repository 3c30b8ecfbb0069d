"""The graph of algorithms that learn from rollouts of a language model: settings that their recipes share, and the experiment.

A recipe brings an algorithm; which workers there are and how they are connected is written once, here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, ClassVar

from runnel.core.bounds import bounded
from runnel.core.config import refuse_unused
from runnel.core.contracts.learning import Collective, Learner
from runnel.core.errors import ConfigError
from runnel.core.resuming import OnResume, may_change, stays
from runnel.flow.staleness import AdmissionRule
from runnel.flow.workers.trainer import Phase
from runnel.graphs.chat_task import ChatPromptTask
from runnel.graphs.experiment import Experiment, InferenceStream, TrainerSpec
from runnel.graphs.mix import rows_of, share_of
from runnel.graphs.prompt_task import PromptTask
from runnel.graphs.run_config import PlacementConfig, RunConfig
from runnel.graphs.unused import (
    OF_FILTER,
    OF_NEW_TASKS,
    OF_TURNS,
    OF_WARM_UP,
    ON_TEXT,
    of_model,
    of_sources,
    of_turns,
    unused_by_learner,
)
from runnel.llm.algorithms.base import Algorithm, PolicyAlgorithm, PolicyConfig
from runnel.llm.algorithms.sft import SupervisedFineTuning
from runnel.llm.chat.config import TalkConfig
from runnel.llm.checks.demonstrations import check_answers, check_resets
from runnel.llm.engines.choose import EngineConfig
from runnel.llm.engines.requests import SamplingConfig
from runnel.llm.learning.learner import DEMOS, TokenLearnerConfig
from runnel.llm.learning.reference import ReferencePlan
from runnel.llm.model.causal_lm import ModelConfig
from runnel.llm.tasks import DataConfig, DifficultyConfig, NewTasksConfig, SourcesConfig

MIXED = "mixed_demos"
"""The stream of demonstrations beside rollouts; those of the warm-up have their own."""


@dataclass(frozen=True)
class PromptConfig(RunConfig):
    """`num_prompts` groups of `group_size` completions an update, after an optional supervised warm-up."""

    on_resume: ClassVar[OnResume] = (
        may_change("max_refills", "reset_share", "top_k", "top_p", "min_p", "stop", then="counts from the next prompt on")
        | stays("task", "tasks", "reward_model", why="a run is of one task")
        | stays("chat", "tools", "agents", why="a run is of one task")
        | stays("max_turns", "max_context", why="segments of that size are on their way")
        | stays("model", why="what was learned is of that network")
        | stays("num_prompts", "group_size", "max_tokens", "demo_rows", why="segments of that size are on their way")
        | stays("warmup_updates", why="it is how the run started")
        | stays("mix", why="batches of those sizes are on their way")
    )

    greedy_first: ClassVar[bool] = False
    """The first completion of each group is greedy, and not trained on: a baseline."""
    demo_first: ClassVar[bool] = False
    """The first completion of each group is the demonstrated answer."""
    chat: str = ""
    """Conversations in place of prompts: a built-in world (calculator, guess, ...; see docs/guides/worlds.md), or your own
    environment as path/to/file.py:make_env."""
    tools: tuple[str, ...] = ()
    """What the model may call before it answers: python, calculator, search:PATH, or your own as path/to/file.py:my_tool."""
    agents: tuple[str, ...] = ()
    """Who speaks for the agents of a game, each as AGENT=WHO (a pattern of names; the first that matches counts): policy, which
    is trained and speaks for all that are not named; frozen, the model as it is when the run begins; model:FOLDER, another
    model; run:FOLDER, the policy of a stored run."""
    max_turns: int = bounded(8, at_least=1)
    """Most replies in a conversation."""
    max_context: int = bounded(0, at_least=0)
    """Most tokens of a conversation; 0: as many as the model reads, at most 4096."""
    talk: TalkConfig = field(default_factory=TalkConfig)
    task: str = "reverse"
    """Name of a task (see `runnel list`), a file or folder of prompts, or your own as path/to/file.py:make_task."""
    tasks: tuple[str, ...] = ()
    """Several sources of prompts in place of `task`, each as NAME=TASK (easy=a.jsonl hard=b.jsonl); one reward judges all."""
    model: str = ""
    """Folder of a Hugging Face model and its tokenizer, a hub id, or smollm2. Empty: a new, small model of the sizes in
    `lm`."""
    num_prompts: int = bounded(8, at_least=1)
    """Prompts in a batch."""
    group_size: int = bounded(8, at_least=2, note="a group needs 2 completions to compare")
    """Completions of each prompt, or conversations of each task."""
    reward_model: str = ""
    """Folder of a trained reward model (recipe `reward_model`) whose score is the reward. The task's own reward is then only
    logged and used in evaluations."""
    max_refills: int = bounded(0, at_least=0)
    """Dynamic sampling: a prompt whose completions all got the same reward is replaced by another one, at most so many times in
    a row. 0: all prompts are trained on."""
    reset_share: float = bounded(0.0, at_least=0, at_most=1)
    """Share of the prompts whose completions begin behind a part of the demonstrated answer, of a random length (dataset reset,
    DR-PO). Rewards judge the whole answer; only the completion is trained."""
    max_tokens: int = bounded(0, at_least=0)
    """Longest completion in tokens; 0: the limit of the task."""
    top_k: int = bounded(0, at_least=0)
    """Sample from the k most likely tokens; 0: from all. Recorded log-probabilities are those without top_k, top_p and
    min_p."""
    top_p: float = bounded(1.0, above=0, at_most=1)
    """Sample from the most likely tokens that together have this probability."""
    min_p: float = bounded(0.0, at_least=0, below=1)
    """Sample from tokens whose probability is at least this fraction of the highest one."""
    stop: tuple[str, ...] = ()
    """A completion ends after any of these texts."""
    warmup_updates: int = bounded(0, at_least=0)
    """Supervised updates on the task's demonstrations before the first update on rollouts."""
    demo_rows: int = bounded(128, at_least=1)
    """Demonstrations in a supervised batch."""
    mix: tuple[str, ...] = ()
    """Demonstrations among the rows of every batch after the warm-up, as their share: demos=0.2. Their cross entropy is added
    to the loss of the rollouts with the weight share / (1 - share): each row then counts as much as any other."""
    total_updates: int | None = 300
    """Budget in updates of the learner, with the warm-up."""
    data: DataConfig = field(default_factory=DataConfig)
    filter: DifficultyConfig = field(default_factory=DifficultyConfig)
    sources: SourcesConfig = field(default_factory=SourcesConfig)
    new_tasks: NewTasksConfig = field(default_factory=NewTasksConfig)
    lm: ModelConfig = field(default_factory=ModelConfig)
    learner: TokenLearnerConfig = field(default_factory=TokenLearnerConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    placement: PlacementConfig = field(default_factory=lambda: PlacementConfig(threads=2))

    @property
    def mixed_rows(self) -> int:
        """Demonstrations in a batch of rollouts."""
        share = share_of(self.mix, DEMOS)
        return rows_of(share, self.num_prompts * self.group_size) if share else 0

    @property
    def uses_answers(self) -> bool:
        """Whether demonstrated answers are trained on, or completions begin with a part of one."""
        return bool(self.warmup_updates or self.mixed_rows or self.reset_share or self.demo_first)

    @property
    def has_turns(self) -> bool:
        """Whether trajectories are conversations of several turns, and not completions."""
        return bool(self.chat or self.tools)

    @property
    def by_history(self) -> bool:
        """Whether prompts are chosen by what the trainer publishes of them."""
        return self.filter.on or bool(self.tasks) or self.new_tasks.capacity > 0

    @property
    def sampling(self) -> SamplingConfig:
        """How completions are drawn."""
        return SamplingConfig(self.learner.temperature, self.top_k, self.top_p, self.min_p, self.stop)

    def unused(self) -> dict[str, str]:
        """Settings, or groups of them, that this run would not read, and why."""
        groups = [f.name for f in fields(self) if isinstance(getattr(self, f.name), EngineConfig | PolicyConfig)]
        own = {f"{group}.{name}": why for group in groups for name, why in getattr(self, group).unused().items()}
        if not self.has_turns:
            policies = [name for name in groups if isinstance(getattr(self, name), PolicyConfig)]
            own |= {f"{name}.{one}": OF_TURNS for name in policies for one in getattr(self, name).of_turns}
        else:
            own |= {"reset_share": "is of completions; conversations begin at their first turn"}
        parts = ({} if self.warmup_updates else OF_WARM_UP) | ({} if self.filter.on else OF_FILTER)
        parts |= {} if self.new_tasks.capacity else OF_NEW_TASKS
        parts |= of_sources(self.tasks, self.sources.pick) | of_turns(self.chat, self.tools) | self.talk.unused()
        return super().unused() | ON_TEXT | of_model(self.model) | own | parts

    def check(self) -> None:
        """Raise a `ConfigError` for what cannot work, before anything starts."""
        super().check()
        self.sampling  # noqa: B018  (it checks itself)
        self.talk.check(self.max_turns)
        if self.total_updates is not None and self.warmup_updates >= self.total_updates:
            raise ConfigError("warmup_updates", self.warmup_updates, f"leaves nothing of total_updates = {self.total_updates}")
        for name, part in ((f.name, getattr(self, f.name)) for f in fields(self)):
            if self.deterministic and isinstance(part, PolicyConfig) and part.duration_power:
                fix = "durations are measured, and differ from run to run; use 0, or no deterministic"
                raise ConfigError(f"{name}.duration_power", part.duration_power, fix)
        if self.tools and not self.chat and self.max_turns == 1:
            raise ConfigError("max_turns", 1, "a call of a tool is one reply, and the answer is another; use at least 2")
        if self.tools and not self.chat and (self.warmup_updates or self.mix):
            name, value = ("warmup_updates", self.warmup_updates) if self.warmup_updates else ("mix", self.mix)
            fix = "prompts with tools have no conversations to imitate; leave it out, or use --chat with a script()"
            raise ConfigError(name, value, fix)
        if self.reset_share and self.filter.on:
            fix = "a prompt whose answer is begun for the model is easier than it is, and filter.on would learn that; use 0"
            raise ConfigError("reset_share", self.reset_share, fix)
        if self.demo_first:
            self._check_demo_first()
        if self.mixed_rows and self.learner.in_parts:
            fix = "the losses of rollouts and demonstrations are divided by different numbers, which parts cannot; use false"
            raise ConfigError("learner.in_parts", True, fix)
        if self.num_prompts % self.num_actors:
            raise ConfigError("num_prompts", self.num_prompts, f"must divide among num_actors = {self.num_actors}")

    def _check_demo_first(self) -> None:
        """Refuse what a demonstration in each group has no place in."""
        fix = "this recipe puts the demonstrated answer into each group, and conversations have none; leave it out"
        for name, value in (("chat", self.chat), ("tools", self.tools)):
            if value:
                raise ConfigError(name, value, fix)
        if self.filter.on:
            fix = "this recipe puts the demonstrated answer into each group, so prompts look easier than they are; use false"
            raise ConfigError("filter.on", True, fix)


def prompt_graph(
    c: PromptConfig,
    algorithm: Callable[[PromptTask], Algorithm] | None = None,
    *,
    learner: Callable[[PromptTask], Learner] | None = None,
) -> Experiment:
    """Up to `warmup_updates` the trainer reads `demos`, then `rollouts`: one run, one line of versions.

    A recipe brings an algorithm for the token learner, or a learner of its own.
    """
    if learner is not None:
        refuse_unused(c, {"mix": "this recipe's learner takes rollouts alone"})
    if learner is not None and c.placement.trainers > 1:
        raise ConfigError("placement.trainers", c.placement.trainers, "this recipe's learner works alone; use 1")
    task = _task_of(c)
    if c.reset_share:
        check_resets(task.task, c.reset_share)
    if c.demo_first:
        check_answers(task.task)
    if algorithm is not None:
        chosen = algorithm(task)
        refuse_unused(c, unused_by_learner(c.learner, needs=chosen.needs))
        _check_fresh(c, chosen)
    reference = _reference_plan(c, task, algorithm)
    rollouts = c.lag_rule(c.num_prompts, start=c.warmup_updates)
    streams = [
        task.rollouts(
            group_size=c.group_size,
            num_prompts=c.num_prompts,
            lag=rollouts.lag,
            truncates=c.sampling.truncates,
            reference=reference is not None,
            num_replaced=c.max_refills if c.by_history else 0,
        )
    ]
    staleness: dict[str, AdmissionRule] = {"rollouts": rollouts}
    actors = list(
        task.actors(
            group_size=c.group_size,
            sampling=c.sampling,
            greedy_first=c.greedy_first,
            max_refills=c.max_refills,
            demo_first=c.demo_first,
            reset_share=c.reset_share,
            filter=c.filter,
            room=c.new_tasks.capacity > 0,
            reference=reference,
        )
    )
    phases = [Phase({"rollouts": c.num_prompts, MIXED: 1} if c.mixed_rows else {"rollouts": c.num_prompts})]
    if c.mixed_rows:
        streams.append(task.demos(rows=c.mixed_rows, lag=rollouts.lag, name=MIXED))
        staleness[MIXED] = c.lag_rule(1, start=c.warmup_updates)
        actors.insert(0, task.demo_actor(MIXED))
    if c.warmup_updates:
        streams.append(task.demos(rows=c.demo_rows, lag=rollouts.lag))
        staleness[DEMOS] = c.lag_rule(1, stop=c.warmup_updates)
        actors.insert(0, task.demo_actor())
        phases.insert(0, Phase({DEMOS: 1}, until=c.warmup_updates))
    slots = c.num_prompts * c.group_size * task.num_trained // c.num_actors
    room = task.message_bytes(c.sampling)
    inference = [InferenceStream(lambda: task.engine(slots), num_workers=c.most_policy_workers, depth=slots, max_bytes=room)]
    inference += task.partners(slots=slots, max_bytes=room)
    if reference is not None:
        assert algorithm is not None
        inference.append(task.reference(c.learner, depth=slots, temperature=c.learner.temperature_for(algorithm(task))))
    made = partial(_learner, c, task, learner, algorithm, reference)
    return Experiment(
        config=c,
        title=task.task.name,
        streams=tuple(streams),
        staleness=staleness,
        actors=tuple(actors),
        inference=tuple(inference),
        trainers=(TrainerSpec(made, tuple(phases), token_streams=("rollouts", DEMOS, MIXED)),),
        evaluation=task.evaluation(),
        curriculum=partial(task.curriculum, c.filter, c.sources, c.new_tasks, rollouts.first_of) if c.by_history else None,
        room=task.room(c.new_tasks, c.data) if c.new_tasks.capacity else None,
        policy=lambda: task.policy(temperature=c.learner.temperature),
        export=task.export,
        look=lambda: [*_slow_imitation(c), *task.look(demos=c.uses_answers)],
        disk=None if algorithm is None else lambda: task.disk(c.learner, algorithm(task).needs),
    )


def _task_of(c: PromptConfig) -> PromptTask:
    model: dict[str, Any] = {"model": c.model, "lm": c.lm, "max_tokens": c.max_tokens, "engine": c.engine}
    model |= {"data": c.data, "stop": c.stop, "lora": c.learner.lora, "tasks": c.tasks}
    if c.chat or c.tools:
        limits: dict[str, Any] = {"max_turns": c.max_turns, "max_context": c.max_context, "talk": c.talk, "agents": c.agents}
        task: PromptTask = ChatPromptTask(c.task, c, chat=c.chat, tools=c.tools, **limits, **model)
    else:
        task = PromptTask(c.task, c, **model)
    if c.reward_model:
        task.judge_by(c.reward_model)
    return task


def _learner(
    c: PromptConfig,
    task: PromptTask,
    own: Callable[[PromptTask], Learner] | None,
    algorithm: Callable[[PromptTask], Algorithm] | None,
    reference: ReferencePlan | None,
    ranks: Collective,
) -> Learner:
    if own is not None:
        return own(task)
    assert algorithm is not None, "a recipe gives prompt_graph an algorithm or a learner"
    algorithms: dict[str, Algorithm] = {"rollouts": algorithm(task), DEMOS: SupervisedFineTuning()}
    if c.mixed_rows:
        # both losses are means over their rows: so weighted, each row counts the same. They are never beside the warm-up's
        weight = c.mixed_rows / (c.num_prompts * c.group_size)
        algorithms[MIXED] = SupervisedFineTuning(coef=weight, name="imitation")
    return task.learner(c.learner, algorithms, ranks, reference)


def _slow_imitation(c: PromptConfig) -> list[str]:
    """What to tell of a warm-up by demonstrations that is over before the learning rate has risen to a half. In a run that is
    itself shorter than that rise, nothing is learned anyway."""
    num, rise = c.warmup_updates, c.learner.warmup_updates
    if not 0 < 2 * num < rise or (c.total_updates is not None and c.total_updates <= rise):
        return []
    full = sum(range(1, num + 1)) / rise
    return [
        f"imitation may teach little: its warmup_updates = {num} come while the learning rate rises from 0 over "
        f"learner.warmup_updates = {rise}, and move as much as {full:.2g} updates at learner.sft_lr would; lower "
        "learner.warmup_updates (0: the full rate from the start), or raise warmup_updates"
    ]


def _check_fresh(c: PromptConfig, algorithm: Algorithm) -> None:
    """An algorithm without an importance weight takes one step on each batch, of samples that the newest weights made."""
    if not (isinstance(algorithm, PolicyAlgorithm) and algorithm.fresh_only):
        return
    used = {"learner.num_epochs": c.learner.num_epochs, "learner.num_minibatches": c.learner.num_minibatches}
    again: dict[str, object] = {name: value for name, value in used.items() if value > 1}
    if c.staleness.mode != "sync":
        again["staleness.mode"] = c.staleness.mode
    if again:
        name, value = next(iter(again.items()))
        use = f"use {'sync' if name == 'staleness.mode' else 1}, or a recipe that weighs its samples, such as aipo or grpo"
        fix = f"{type(algorithm).__name__} has no importance weight for samples of older weights; {use}"
        raise ConfigError(name, value, fix)


def _reference_plan(
    c: PromptConfig, task: PromptTask, algorithm: Callable[[PromptTask], Algorithm] | None
) -> ReferencePlan | None:
    """Which versions the workers of a reference hold, where it has some."""
    num = c.placement.reference_workers
    if not num:
        return None
    if c.learner.shard:
        fix = "the ranks of learner.shard compute the reference in their parts; use 0, or no shards"
    elif algorithm is None or "reference_logprob" not in algorithm(task).needs:
        fix = "the algorithm, as it is set, compares with no reference; set its kl_coef above 0, or use 0"
    else:
        return ReferencePlan(c.warmup_updates, c.learner.reference_every)
    raise ConfigError("placement.reference_workers", num, fix)

"""The graph of algorithms that learn from preferences: settings that their recipes share, and the experiment."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import ClassVar

from runnel.core.bounds import bounded
from runnel.core.config import refuse_unused
from runnel.core.contracts.evaluation import Evaluation, Policy
from runnel.core.contracts.inference import Inferencer
from runnel.core.contracts.learning import Collective
from runnel.core.contracts.samples import Sampler
from runnel.core.errors import ConfigError, DataError
from runnel.core.records import StreamSpec
from runnel.core.resuming import OnResume, may_change, stays
from runnel.core.rng import make_seed
from runnel.flow.workers.trainer import Phase
from runnel.graphs.experiment import ActorSpec, EvaluationSpec, Experiment, TrainerSpec
from runnel.graphs.prompt_task import PromptTask
from runnel.graphs.run_config import PlacementConfig, RunConfig
from runnel.graphs.unused import all_of, unused_by_learner, unused_on_data
from runnel.llm.algorithms.base import Algorithm
from runnel.llm.export import save_scorer
from runnel.llm.learning.learner import TokenLearner, TokenLearnerConfig
from runnel.llm.learning.sharded import learner_class
from runnel.llm.model.causal_lm import ModelConfig, ScalarModel
from runnel.llm.sampling.groups import pair_stream
from runnel.llm.sampling.pairs import PairSampler, fitting
from runnel.llm.scoring import PairEvaluation, ScoreEngine, ScoringPolicy
from runnel.llm.tasks import DataConfig, Example
from runnel.llm.tasks.preferences import Given, Pair, Strength, read_pairs, split_pairs

SCORING = {
    **all_of("eval", ("samples", "pass_reward"), "a reward model completes nothing"),
    "max_tokens": "a reward model completes nothing",
    "data.max_prompt": "rows are as long as the model's context allows",
    "lm.tie_embeddings": "a reward model has no output embedding",
    "data.reward_timeout_s": "pairs train a reward model; no other reward judges here",
}
"""Settings that a reward model has no use for."""


@dataclass(frozen=True)
class PairConfig(RunConfig):
    """`num_pairs` pairs of answers an update."""

    on_resume: ClassVar[OnResume] = (
        may_change("max_tokens", then="counts from the next evaluation on")
        | stays("task", "pairs", why="a run is of one task")
        | stays("model", why="what was learned is of that network")
        | stays("num_pairs", why="segments of that size are on their way")
    )

    task: str = "reverse"
    """Task on which the policy is evaluated: a name (see `runnel list`), or your own as path/to/file.py:make_task."""
    pairs: str = ""
    """File of JSON lines with prompt, chosen and rejected. Empty: the task's own answers are chosen, and answers to other
    prompts are rejected."""
    model: str = ""
    """Folder of a Hugging Face model and its tokenizer. Empty: a new, small model of the sizes in `lm`."""
    num_pairs: int = bounded(32, at_least=1)
    """Pairs in a batch."""
    max_tokens: int = bounded(0, at_least=0)
    """Longest completion in an evaluation, in tokens; 0: the limit of the task."""
    total_updates: int | None = 200
    """Budget in updates of the learner."""
    data: DataConfig = field(default_factory=DataConfig)
    lm: ModelConfig = field(default_factory=ModelConfig)
    learner: TokenLearnerConfig = field(default_factory=TokenLearnerConfig)
    placement: PlacementConfig = field(default_factory=lambda: PlacementConfig(threads=2))

    def unused(self) -> dict[str, str]:
        """Settings, or groups of them, that this run would not read, and why."""
        return super().unused() | unused_on_data(self)


@contextmanager
def _pairs_as_task(c: PairConfig) -> Iterator[None]:
    """Pairs that were given as the task, which a policy is evaluated on: say where they go."""
    try:
        yield
    except (ConfigError, DataError) as error:
        if c.pairs or (isinstance(error, ConfigError) and error.field != "task"):
            raise
        why = error.fix if isinstance(error, ConfigError) else str(error)
        fix = "is what the policy is evaluated on; pairs of answers (prompt, chosen, rejected) are given as --pairs FILE"
        raise ConfigError("task", c.task, f"{fix} ({why})") from error


def pair_graph(
    c: PairConfig, algorithm: Algorithm, *, scores: bool = False, asked: Mapping[Strength, str] | None = None
) -> Experiment:
    """One actor reads pairs; the trainer takes a segment of them an update. With `scores`, the model is a reward model. Pairs
    need what is `asked` for, each by the setting that asks."""
    task = given_task(c, algorithm, scores=scores)
    train, held, told = _pairs(c, task, scores=scores, asked=asked or {})
    train, longest, left_out = fitting(train, task.tokenizer, context=task.context)
    if scores and held:
        held, _, more = fitting(held, task.tokenizer, context=task.context)
        left_out += more
    some = held[: c.eval.episodes]

    def sampler(incarnation: int) -> PairSampler:
        return PairSampler(train, task.tokenizer, seed=make_seed(c.seed, "pairs", incarnation))

    return given_graph(
        c,
        task,
        algorithm,
        stream=pair_stream(
            num_pairs=c.num_pairs, max_length=longest, capacity=c.lag_rule(1).lag + 1, strengths=tuple(asked or ())
        ),
        sampler=sampler,
        told=[*told, *left_out],
        scores=scores,
        evaluation=(lambda: PairEvaluation(some, task.tokenizer)) if some else None,
    )


def given_task(c: PairConfig, algorithm: Algorithm, *, scores: bool) -> PromptTask:
    """What a policy is evaluated on, and whose tokenizer reads the rows. Settings that the algorithm has no use for are
    refused."""
    refuse_unused(c, unused_by_learner(c.learner, needs=algorithm.needs) | (SCORING if scores else {}))
    completion = 1 if scores else c.max_tokens  # a reward model needs no room for one
    with _pairs_as_task(c):
        task = PromptTask(c.task, c, model=c.model, lm=c.lm, max_tokens=completion, data=c.data, lora=c.learner.lora)
    task.check_reference(c.learner)
    return task


def given_graph(
    c: PairConfig,
    task: PromptTask,
    algorithm: Algorithm,
    *,
    stream: StreamSpec,
    sampler: Callable[[int], Sampler],
    told: Sequence[str],
    scores: bool,
    evaluation: Callable[[], Evaluation] | None,
) -> Experiment:
    """One actor without inference fills `stream`; the trainer takes a segment of it an update. With `scores` the model is a
    reward model, and has an `evaluation` of its own."""
    name = stream.name

    def learner(ranks: Collective) -> TokenLearner:
        body = task.trained_model(c.learner)
        made = learner_class(c.learner, ranks, c.device)(
            c.learner,
            ScalarModel(body) if scores else body,
            algorithms={name: algorithm},
            collective=ranks,
            device=c.device,
            recorder=task.recorder(),
        )
        return made if scores else task.checked(made)

    scored = None
    if evaluation is not None:
        scored = EvaluationSpec(make=evaluation, inferencer=lambda: ScoreEngine(ScalarModel(task.model()), device=c.device))
    return Experiment(
        config=c,
        title=task.task.name,
        streams=(stream,),
        staleness={name: c.lag_rule(1)},
        actors=(ActorSpec(f"{name}-0", sampler, writes=(name,), asks=()),),
        inference=(),
        trainers=(TrainerSpec(learner, (Phase({name: 1}),), token_streams=(name,)),),
        evaluation=scored if scores else task.evaluation(),
        policy=(lambda: _scoring_policy(task)) if scores else task.policy,
        export=(lambda params, folder: save_scorer(task.model(), params, task.tokenizer, folder)) if scores else task.export,
        look=lambda: list(told),
        disk=lambda: task.disk(c.learner, algorithm.needs),
        own_params=("score.weight",) if scores else (),
    )


def _pairs(
    c: PairConfig, task: PromptTask, *, scores: bool, asked: Mapping[Strength, str]
) -> tuple[list[Pair], list[Pair], list[str]]:
    """Pairs to train on; for a reward model, which is evaluated on pairs, others of prompts that it never sees; what to tell.

    A policy is evaluated on the task's held-out prompts, so it trains on all pairs but those."""
    if not c.pairs:
        return pairs_of_answers(task.task.train), pairs_of_answers(task.task.eval), []
    found = read_pairs(c.pairs, asked)
    if scores:
        return *split_pairs(found), []
    train, told = not_held_out(found, task, field="pairs", path=c.pairs)
    return train, [], told


def not_held_out(found: Sequence[Given], task: PromptTask, *, field: str, path: str) -> tuple[list[Given], list[str]]:
    """Those pairs or answers of a file whose prompts the task does not evaluate on, and what to tell of the others."""
    what = "pairs" if isinstance(found[0], Pair) else "answers"
    name, seen = task.task.name, {e.text for e in task.task.eval}
    train = [one for one in found if one.text not in seen]
    if not train:
        raise ConfigError(field, path, f"all its prompts are held out by the task {name!r}; give {what} of other prompts")
    lost = len(found) - len(train)
    told = [f"{lost} of {len(found)} {what} have prompts that the task holds out; they are not trained on"] if lost else []
    return train, told


def pairs_of_answers(examples: Sequence[Example]) -> list[Pair]:
    """Each example's answer against that of the next one."""
    if any(e.answer is None for e in examples):
        raise ConfigError("pairs", "", "the task has examples without an answer to make pairs of; give a file of pairs")
    others = [*examples[1:], examples[0]]
    both = [(e, str(e.answer), str(o.answer)) for e, o in zip(examples, others, strict=True)]
    found = [Pair(e.prompt, chosen, rejected) for e, chosen, rejected in both if chosen != rejected]
    if not found:
        raise ConfigError("pairs", "", "all answers of the task are the same, so none can be rejected; give a file of pairs")
    return found


def _scoring_policy(task: PromptTask) -> tuple[Policy, Inferencer]:
    policy = ScoringPolicy(ScalarModel(task.model()), task.tokenizer)
    return policy, policy.engine

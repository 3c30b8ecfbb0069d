"""The graph of algorithms that learn from single answers with a label or a score, in place of pairs."""

from __future__ import annotations

from collections.abc import Sequence

from runnel.core.errors import ConfigError
from runnel.core.rng import make_seed
from runnel.graphs.experiment import Experiment
from runnel.graphs.pairs import PairConfig, given_graph, given_task, not_held_out, pairs_of_answers
from runnel.graphs.prompt_task import PromptTask
from runnel.llm.algorithms.base import Algorithm
from runnel.llm.sampling.groups import rated_stream
from runnel.llm.sampling.rated import RatedSampler, fitting_rated
from runnel.llm.scoring import ScoreEvaluation
from runnel.llm.tasks.preferences import Rated, read_pairs, read_rated, split_pairs, unrolled


def labelled_graph(c: PairConfig, algorithm: Algorithm, *, rated: str) -> Experiment:
    """The answers in the file `rated`, each with its label; without one, both answers of each pair. A batch has as many answers
    as `num_pairs` pairs, each beside a mismatched one."""
    _check_one(c, rated, "pairs, which are made into such")
    task = given_task(c, algorithm, scores=False)
    train, told = _labelled(c, task, rated)
    return _rated_graph(c, task, algorithm, train, told=told, mismatched=True)


def scored_graph(c: PairConfig, algorithm: Algorithm, *, rated: str) -> Experiment:
    """A reward model of the answers in the file `rated`, each with its score. Prompts that are kept apart evaluate it."""
    _check_one(c, rated, "pairs")
    task = given_task(c, algorithm, scores=True)
    train, held = split_pairs(read_rated(rated, "score"))
    held, told = fitting_rated(held, task.tokenizer, context=task.context)[::2] if held else ([], [])
    return _rated_graph(c, task, algorithm, train, told=told, scores=True, held=held[: c.eval.episodes])


def _check_one(c: PairConfig, rated: str, other: str) -> None:
    if rated and c.pairs:
        raise ConfigError("rated", rated, f"give single answers (rated), or {other} (pairs); not both")


def _rated_graph(
    c: PairConfig,
    task: PromptTask,
    algorithm: Algorithm,
    train: Sequence[Rated],
    *,
    told: Sequence[str],
    mismatched: bool = False,
    scores: bool = False,
    held: Sequence[Rated] = (),
) -> Experiment:
    """One actor reads rated answers; the trainer takes a segment of them an update."""
    kept, longest, left_out = fitting_rated(train, task.tokenizer, context=task.context)

    def sampler(incarnation: int) -> RatedSampler:
        seed = make_seed(c.seed, "rated", incarnation)
        return RatedSampler(kept, task.tokenizer, seed=seed, mismatched=mismatched, max_length=longest)

    num = 2 * c.num_pairs
    stream = rated_stream(num_rows=num, max_length=longest, mismatched=mismatched, capacity=c.lag_rule(1).lag + 1)
    return given_graph(
        c,
        task,
        algorithm,
        stream=stream,
        sampler=sampler,
        told=[*told, *left_out],
        scores=scores,
        evaluation=(lambda: ScoreEvaluation(held, task.tokenizer)) if held else None,
    )


def _labelled(c: PairConfig, task: PromptTask, rated: str) -> tuple[list[Rated], list[str]]:
    """Answers with labels to train on, of prompts that the task does not evaluate on, and what to tell."""
    if rated:
        found = read_rated(rated, "label")
        train, told = not_held_out(found, task, field="rated", path=rated)
    elif c.pairs:
        train, told = not_held_out(unrolled(read_pairs(c.pairs)), task, field="pairs", path=c.pairs)
    else:
        train, told = unrolled(pairs_of_answers(task.task.train)), []
    good = sum(one.rating > 0 for one in train)
    if good in (0, len(train)):
        kind, none = ("good", "bad") if good else ("bad", "good")
        told = [*told, f"all {len(train)} answers are {kind} ones, and none is {none}: the policy learns from one side alone"]
    return train, told

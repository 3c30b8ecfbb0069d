"""Several readers of one stream, transforms, and several trainers, in one process (`fakes_plural.py` has the graph)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fakes_plural import Archive, Critic, InParts, Label, plural
from fakes_run import experiment, group_of, run

from runnel.core.contracts.evaluation import ResultTable
from runnel.core.errors import ConfigError, DataError
from runnel.flow.staleness import StalenessConfig
from runnel.flow.workers.trainer import Budget, Phase, TrainerWorker
from runnel.flow.workers.transform import TransformWorker
from runnel.graphs.experiment import Experiment, describe
from runnel.graphs.run_config import PlacementConfig, RunConfig
from runnel.run.checkpoint import read_parts, write_parts
from runnel.run.dataflow import dataflow
from runnel.run.group import ProcessGroup
from runnel.run.wiring import place

MODES = [StalenessConfig("sync"), StalenessConfig("one_step"), StalenessConfig("window", max_lag=2)]


class Standing(Archive):
    """A reader that stands still."""

    stands = True


def worker(group: ProcessGroup, name: str) -> Any:
    return next(w for w in group.workers if w.name == name)


def trained(group: ProcessGroup) -> int:
    return sum(e["kind"] == "update" for e in group.collect())


# ------------------------------------------------------------------------------------------------------------- readers
@pytest.mark.parametrize("staleness", MODES, ids=lambda s: s.mode)
def test_every_reader_gets_every_segment_and_its_account_adds_up(staleness: StalenessConfig) -> None:
    group = group_of(plural(staleness=staleness))
    group.start()
    run(group, 200)
    group.check()
    accounts = group.accounting()
    assert sorted(accounts) == ["labels", "play", "play:archive", "play:label"]
    assert accounts["play"].consumed == 40
    # The last segments may be begun for a batch that the budget no longer pays for: all that was finished was read by all.
    archive = worker(group, "archive").transform
    assert archive.seen == sorted(archive.seen)
    assert len(archive.seen) >= 40
    assert accounts["play:archive"].consumed + 1 == len(archive.seen)
    assert accounts["play:label"].consumed == accounts["labels"].dispatched
    parents = worker(group, "critic").learner.parents
    assert len(parents) == len(set(parents)) == accounts["labels"].consumed


def test_a_lossy_reader_that_stands_still_never_slows_training() -> None:
    free, stuck = (group_of(plural(lossy=True, archive=kind)) for kind in (Archive, Standing))
    for group in (free, stuck):
        group.start()
        for _ in range(60):
            group.round()
        group.check()
    assert trained(free) == trained(stuck) == 20
    accounts = stuck.accounting()
    account = accounts["play:archive"]
    assert (account.consumed, account.balance) == (0, 0)
    assert account.dropped["skipped"] == accounts["play:label"].consumed


def test_a_lossless_reader_that_stands_still_holds_training_up_and_is_named() -> None:
    group = group_of(plural(archive=Standing))
    group.start()
    for _ in range(60):
        group.round()
    assert 0 < trained(group) < 20
    assert group.waits()["actor-0"] == "room on 'play' (held by reader archive)"
    group.check()


def test_what_a_transform_holds_is_compared_with_the_account() -> None:
    group = group_of(plural())
    group.start()
    run(group, 30)
    worker(group, "archive").transform.rows = 0
    with pytest.raises(DataError, match="'archive' holds 0 rows of stream 'play', but its account says 1"):
        group.check()


def test_a_lossy_reader_that_is_lost_starts_afresh_and_what_it_held_is_dropped(tmp_path: Path) -> None:
    group = group_of(plural(lossy=True))
    group.start()
    run(group, 30)
    assert group.accounting()["play:archive"].in_flight
    assert group.abandon("archive") == 1
    write_parts(tmp_path, group.snapshot(without="archive"))
    again = group_of(plural(lossy=True))
    assert again.start(read_parts(tmp_path), epoch=1) == ["archive"]
    run(again, 100)
    again.check()
    assert again.accounting()["play:archive"].dropped["worker_lost"] == 1
    assert worker(again, "trainer").version == 20


# ------------------------------------------------------------------------------------------------------------ trainers
def test_trainers_go_at_their_own_pace_and_one_learns_from_the_other() -> None:
    alone, guided = group_of(replace_loads(plural(), ())), group_of(plural())
    for group in (alone, guided):
        group.start()
        run(group, 200)
    critic = worker(guided, "critic")
    assert critic.version == guided.accounting()["labels"].consumed // 3
    leader, other = worker(guided, "trainer"), worker(alone, "trainer")
    assert leader.version == other.version == 20 > critic.version > 10
    assert float(leader.learner.w) > float(other.learner.w)
    newest = float(critic.learner.w)
    assert newest > 0
    assert float(leader.learner.worth) == pytest.approx(newest, rel=0.5)


def replace_loads(e: Experiment, loads: tuple[str, ...]) -> Experiment:
    leader, *others = e.trainers
    return replace(e, trainers=(replace(leader, loads=loads), *others))


def test_a_trainer_with_a_budget_of_its_own_stops_and_the_run_goes_on() -> None:
    e = plural()
    leader, critic = e.trainers
    critic = replace(critic, budget=Budget(total_updates=3))
    labels = replace(e.streams[1], readers=("critic",))
    # The stream of labels fills up once nobody trains on them, so the labels' source must be a reader that nobody waits for.
    play = replace(e.streams[0], readers=("trainer", "archive"), lossy_readers=("label",))
    group = group_of(replace(e, trainers=(leader, critic), streams=(play, labels)))
    group.start()
    run(group, 200)
    group.check()
    assert worker(group, "critic").version == 3
    assert group.waits()["critic"] == "nothing: the budget is spent"
    assert worker(group, "trainer").version == 20


def test_events_say_which_trainer_leads() -> None:
    group = group_of(plural())
    group.start()
    kinds = {(e["kind"], e["worker"]) for e in run(group, 100) if e["kind"] in ("update", "beside")}
    assert kinds == {("update", "trainer"), ("beside", "critic")}


@pytest.mark.parametrize("staleness", MODES, ids=lambda s: s.mode)
@pytest.mark.parametrize("lossy", [False, True], ids=["lossless", "lossy"])
@pytest.mark.parametrize("cut", [1, 4, 9, 14, 23])
def test_a_run_that_is_killed_at_any_round_and_resumed_goes_on_identically(
    staleness: StalenessConfig, lossy: bool, cut: int, tmp_path: Path
) -> None:
    whole, half, again = (group_of(plural(staleness=staleness, lossy=lossy)) for _ in range(3))
    whole.start()
    half.start()
    run(whole, cut)
    run(half, cut)
    half.check()
    write_parts(tmp_path, half.snapshot())
    run(half, 3)
    assert again.start(read_parts(tmp_path), epoch=1) == []
    wanted, found = run(whole, 40), run(again, 40)
    for kind in ("update", "beside"):
        assert [e for e in found if e["kind"] == kind] == [e for e in wanted if e["kind"] == kind]
    for name, table in whole.tables.items():
        assert np.array_equal(table.readers, again.tables[name].readers)
    for name in ("trainer", "critic"):
        a, b = (worker(group, name).learner.state_dict() for group in (whole, again))
        assert all(torch.equal(a[k], b[k]) if isinstance(a[k], torch.Tensor) else a[k] == b[k] for k in a)
    assert worker(whole, "archive").transform.total == worker(again, "archive").transform.total


def test_a_checkpoint_has_the_parameters_of_every_trainer(tmp_path: Path) -> None:
    group = group_of(plural())
    group.start()
    run(group, 60)
    parts = group.snapshot()
    assert set(parts) >= {"params", "params-critic", "channel-policy", "channel-worth", "worker-critic", "worker-label"}
    assert torch.equal(parts["params-critic"]["w"], worker(group, "critic").learner.w)


# ---------------------------------------------------------------------------------------------------------- evaluations
def test_an_evaluation_asks_several_policies_and_gives_a_table() -> None:
    group = group_of(plural())
    group.start()
    evals = [e for e in run(group, 100) if e["kind"] == "eval"]
    assert len(evals) == 10
    table = evals[-1]["tables"]["scores"]
    assert (sorted(table["rows"]), table["columns"]) == (["critic", "judge", "policy"], ["score", "version"])
    found = dict(zip(table["rows"], table["values"], strict=True))
    assert found["policy"] == [pytest.approx(evals[-1]["returns"][0]), 20.0]
    assert found["critic"][0] > 0
    assert 0 < found["critic"][1] < 20
    assert found["judge"] == [0.0, 0.0]


def test_a_table_that_does_not_fit_its_names_is_refused() -> None:
    with pytest.raises(DataError, match=r"a table of 2 x 1 names has 1 rows of \[1\] values"):
        ResultTable(["a", "b"], ["x"], [[1.0]])
    assert ResultTable(["a"], ["x"], [[float("nan")]]).as_data()["values"] == [[None]]


# ------------------------------------------------------------------------------------------------------ batches in parts
def in_parts(staleness: StalenessConfig) -> Experiment:
    e = experiment(num_actors=3, staleness=staleness)
    return replace(e, trainers=(replace(e.leader, learner=lambda ranks: InParts()),))


@pytest.mark.parametrize("staleness", MODES, ids=lambda s: s.mode)
def test_a_batch_in_parts_is_the_batch(staleness: StalenessConfig) -> None:
    """The same versions from the same segments, as far as rounding goes."""
    parts, whole = group_of(in_parts(staleness)), group_of(experiment(num_actors=3, staleness=staleness))
    found, wanted = [], []
    for group, log in ((parts, found), (whole, wanted)):
        group.start()
        log += [e for e in run(group, 200) if e["kind"] == "update"]
        group.check()
    if staleness.mode != "window":  # there, a trainer that is busy earlier lets actors begin earlier
        assert [e["sample_ids"] for e in found] == [e["sample_ids"] for e in wanted]
        assert [e["metrics"]["mean"] for e in found] == pytest.approx([e["metrics"]["mean"] for e in wanted], rel=1e-6)
    assert len(found) == len(wanted) == 20
    learner = worker(parts, "trainer").learner
    assert len(learner.log) == 60


def test_a_part_is_trained_on_before_the_batch_is_whole() -> None:
    group = group_of(in_parts(StalenessConfig("sync")))
    group.start()
    trainer, actor = worker(group, "trainer"), worker(group, "actor-0")
    for _ in range(3):
        actor.poll()
    assert (trainer.poll(), trainer.version) == (1, 0)
    assert trainer.learner.log == [0]
    assert trainer.poll() == 0
    assert trainer.waits_for() == "one more segment of a batch on stream 'play'"
    assert group.accounting()["play"].in_flight > 0
    group.check()


@pytest.mark.parametrize("staleness", MODES, ids=lambda s: s.mode)
@pytest.mark.parametrize("cut", [1, 2, 3, 4, 5, 6, 7, 8])
def test_a_run_that_is_killed_in_the_middle_of_a_batch_begins_the_batch_again(
    staleness: StalenessConfig, cut: int, tmp_path: Path
) -> None:
    whole, half, again = (group_of(in_parts(staleness)) for _ in range(3))
    whole.start()
    half.start()
    run(whole, cut)
    run(half, cut)
    half.check()
    write_parts(tmp_path, half.snapshot())
    again.start(read_parts(tmp_path), epoch=1)
    again.check()
    wanted, found = run(whole, 60), run(again, 60)
    kept = [(e["version"], e["metrics"], e["sample_ids"]) for e in wanted if e["kind"] == "update"]
    assert [(e["version"], e["metrics"], e["sample_ids"]) for e in found if e["kind"] == "update"] == kept
    assert torch.equal(worker(whole, "trainer").learner.w, worker(again, "trainer").learner.w)


# ----------------------------------------------------------------------------------------------------- placing, telling
def test_placement_and_the_graph_in_words() -> None:
    e = plural(launcher="local", placement=PlacementConfig(policy_workers=1))
    assert place(e) == {
        "actor-0": ["actor-0"],
        "actor-1": ["actor-1"],
        "policy-0": ["policy-0"],
        "label": ["label"],
        "archive": ["archive"],
        "trainer": ["trainer", "evaluator"],
        "critic": ["critic"],
    }
    text = describe(e, place(e))
    assert "actor-0, actor-1 --play[T=2 x B=1; 4 slots; shm]--> trainer, label, archive" in text
    assert "label --labels[B=1; 6 slots; shm]--> critic" in text
    assert "label ==ask judge==> inline" in text
    assert "critic ~~worth~~> trainer, evaluator" in text
    kinds = {w["name"]: w["kind"] for w in dataflow(e, place(e))["workers"]}
    assert (kinds["label"], kinds["critic"], kinds["archive"]) == ("transform", "trainer", "transform")


def test_on_a_cluster_the_readers_of_a_stream_stay_together() -> None:
    config = RunConfig(launcher="ray", total_updates=20, num_actors=2)
    groups = place(replace(plural(), config=config))
    assert groups["trainer"] == ["label", "archive", "trainer", "evaluator"]


# ------------------------------------------------------------------------------------------------------- what is refused
def with_streams(e: Experiment, **play: Any) -> Experiment:
    return replace(e, streams=(replace(e.streams[0], **play), *e.streams[1:]))


def with_transform(e: Experiment, **fields: Any) -> Experiment:
    return replace(e, transforms=(replace(e.transforms[0], **fields), *e.transforms[1:]))


def with_critic(e: Experiment, **fields: Any) -> Experiment:
    return replace(e, trainers=(e.trainers[0], replace(e.trainers[1], **fields)))


REFUSED: Mapping[str, tuple[Any, str]] = {
    "a reader nobody is": (
        lambda e: with_streams(e, readers=("trainer", "label", "archive", "ghost")),
        r"play\.readers = 'ghost': no worker of this name reads it",
    ),
    "a reader that is not declared": (
        lambda e: with_streams(e, readers=("trainer", "label")),
        r"play\.readers = .*'archive' reads it too; add it to the readers",
    ),
    "a name twice": (
        lambda e: with_streams(e, lossy_readers=("label",)),
        r"play\.readers = .*'label' is named twice",
    ),
    "no reader that paces": (
        lambda e: with_streams(e, readers=("label", "trainer", "archive")),
        r"play\.readers = .*put 'trainer' first: it paces the writers",
    ),
    "two that pace": (
        lambda e: with_transform(e, paces=True),
        r"play\.readers = \['label', 'trainer'\]: these would all pace its writers; exactly one reader may",
    ),
    "a circle": (
        lambda e: with_transform(e, writes=("play",)),
        r"label\.writes = 'play': it reads this stream too; write to a stream of its own",
    ),
    "a stream that is not there": (
        lambda e: with_transform(e, writes=("lables",)),
        r"label\.streams = 'lables': there is no such stream; there are labels, play",
    ),
    "an inference stream that is not there": (
        lambda e: with_transform(e, asks=("jury",)),
        r"label\.asks = 'jury': there is no such inference stream",
    ),
    "a transform that reads nothing": (
        lambda e: with_transform(e, reads=()),
        r"label\.reads = \(\): a transform reads at least one stream",
    ),
    "two workers of one name": (
        lambda e: with_transform(e, name="critic"),
        r"transforms = 'critic': two workers have this name",
    ),
    "two publishers of one channel": (
        lambda e: with_critic(replace(replace_loads(e, ()), evaluation=None), channel="policy"),
        r"critic\.channel = 'policy': 'trainer' publishes it already",
    ),
    "a channel that nobody publishes": (
        lambda e: replace_loads(e, ("wroth",)),
        r"trainer\.loads = 'wroth': no other trainer publishes this channel; there are: worth",
    ),
    "an evaluation of a channel that nobody publishes": (
        lambda e: replace(e, evaluation=replace(e.evaluation, others={"critic": (Critic, "worht")})),
        r"evaluation\.critic = 'worht': nobody publishes this parameter channel; there are: policy, worth",
    ),
    "a trainer whose phases end": (
        lambda e: with_critic(e, phases=(Phase({"labels": 3}, until=3),)),
        r"critic\.phases = .*the last phase must have no end",
    ),
    "ranks that would load different versions": (
        lambda e: replace(e, config=replace(e.config, launcher="local", placement=PlacementConfig(trainers=2))),
        r"trainer\.ranks = 2: ranks could load different versions",
    ),
    "loading by time in a deterministic run": (
        lambda e: replace(e, config=replace(e.config, launcher="local", deterministic=True)),
        r"trainer\.loads = .*depends on timing between processes",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_graph_that_cannot_work_is_refused_before_anything_starts(name: str) -> None:
    change, message = REFUSED[name]
    e = plural()
    e.check()
    with pytest.raises(ConfigError, match=message):
        change(e).check()


def test_a_learner_that_cannot_load_is_refused_when_its_trainer_starts() -> None:
    e = plural()
    leader, critic = e.trainers
    e = replace(e, trainers=(replace(leader, learner=lambda ranks: Critic()), critic))
    with pytest.raises(DataError, match=r"learner .*Critic has no load_params\(channel, params\), but its trainer loads worth"):
        group_of(e).start()


def test_workers_are_of_the_kinds_that_the_library_has() -> None:
    """The buffer, labels and archives are one class of worker; so are all trainers."""
    group = group_of(plural())
    kinds = {type(w) for w in group.workers if w.name in ("label", "archive")}
    assert kinds == {TransformWorker}
    assert isinstance(worker(group, "label").transform, Label)
    assert {type(worker(group, name)) for name in ("trainer", "critic")} == {TrainerWorker}

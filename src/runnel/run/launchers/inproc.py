"""The in-process launcher: one thread, one round of polls after another. Deterministic, and steppable in a debugger."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from runnel.core.contracts.params import ParamSet
from runnel.core.errors import DeadlockError, DiskError, EvaluationInterrupted, NonFiniteError, UnrestorableError
from runnel.run.best import BestParams
from runnel.run.checkpoint import read_learner, write_parts
from runnel.run.group import ProcessGroup
from runnel.run.session import Session
from runnel.run.tracing import open_recorder
from runnel.run.wiring import wire

PATIENCE = 3


def launch(session: Session) -> str:
    """Run to the end; returns the status. The caller has made the session and will close it."""
    with torch_threads(session.experiment.config.placement.threads):
        return _launch(session)


@contextmanager
def torch_threads(num: int) -> Iterator[None]:
    """Let torch use `num` threads in the block, and as many as before after it."""
    before = torch.get_num_threads()
    torch.set_num_threads(num)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _launch(session: Session) -> str:
    ledger, group = session.ledger, _set_up(session)
    try:
        _lend_policy(session, group)
        source = session.experiment.config.init_from
        if session.warm_learner is not None:
            group.take_learner(read_learner(session.warm_learner, session.experiment.leader.name), source)
        elif session.warm_params is not None:
            group.warm_start(session.warm_params, source)
        session.begin(group.live())
        status = _rounds(session, group)
        if status != "interrupted":
            status = status if group.evaluate() else "interrupted"
            ledger.add(group.collect())
        save(session, group, last=True)
        return status
    except Exception as error:
        _save_without_culprit(session, group, error)
        raise
    finally:
        group.close()


def _lend_policy(session: Session, group: ProcessGroup) -> None:
    """Let callbacks read the current policy."""
    trainer = group.trainer
    if trainer is not None and session.ledger.policy is not None:
        session.ledger.policy.source = lambda: ParamSet(trainer.version, trainer.learner.params())


def _set_up(session: Session) -> ProcessGroup:
    """Build the workers of the run, from its newest checkpoint that can be restored, if it has one."""
    while True:
        group = _wire(session)
        try:
            group.change_settings(session.live.replay())
            group.add_tasks(session.new_tasks.replay())
            group.start(session.states, epoch=session.epoch)
            return group
        except BaseException as error:
            group.close()
            if not isinstance(error, Exception):
                raise
            session.fall_back(error)


def _wire(session: Session) -> ProcessGroup:
    epoch = session.epoch
    return wire(
        session.experiment,
        session.groups,
        "main",
        clock=session.clock,
        incarnation=epoch,
        recorder=open_recorder(session.experiment.config, session.folder.path, "main", session.clock, epoch=epoch),
        progress=lambda done, total: _progress(session, done, total),
        keep=BestParams(session.folder.best).offer,
    )


def _progress(session: Session, done: int, total: int) -> None:
    """Report the progress of an evaluation; abort it if the user stops the run."""
    session.ledger.tick(f"evaluating {done}/{total}")
    session.listen()
    if session.interrupted.is_set():
        raise EvaluationInterrupted


def _rounds(session: Session, group: ProcessGroup) -> str:
    ledger, saved, idle = session.ledger, session.ledger.version, 0
    while True:
        work = group.round()
        ledger.add_stages(group.stages())
        ledger.add(group.collect())
        status = session.should_stop()
        if status is not None:
            return status
        idle = 0 if work else idle + 1
        if idle >= PATIENCE:
            waits = "; ".join(f"{name} waits for {what}" for name, what in group.waits().items())
            raise DeadlockError(f"nothing can move any more: {waits}")
        orders = session.orders()
        if settings := session.settings_ordered(orders):
            session.live.record(settings, group.next_versions())
            group.change_settings(session.live.replay())
        if session.tasks_ordered(orders):
            group.add_tasks(session.added_at(group.next_versions()))
        asked = any(order["op"] == "checkpoint" for order in orders)
        if asked or session.checkpoint_due(saved):
            save(session, group)
            saved = ledger.version
        ledger.tick()


def _save_without_culprit(session: Session, group: ProcessGroup, error: Exception) -> None:
    """Name the worker that failed, and save the rest of the run if it is intact; on resume that worker starts without state.

    Nothing is saved if the trainer failed (it may be inside an update), if a transform failed that must miss nothing (what a
    replay buffer holds would be lost), or after NaN or infinite numbers (they may be anywhere).
    """
    culprit = group.polling
    if culprit is None:
        return
    error.add_note(f"raised by worker {culprit.name!r} at version {session.ledger.version}; run folder: {session.folder.path}")
    if isinstance(error, NonFiniteError) or not session.experiment.is_stateless(culprit.name):
        return
    try:
        session.ledger.add(group.collect())
        group.abandon(culprit.name)
        save(session, group, without=culprit.name)
    except DiskError as full:
        error.add_note(f"the rest of the run could not be saved: {full}")


def save(session: Session, group: ProcessGroup, *, without: str = "", last: bool = False) -> None:
    """Check the accounts, then save the run. A failed save is reported and the run goes on; a failed last save raises."""
    group.check()
    for whole in (kinds := session.checkpoint_kinds(last=last)):
        try:
            path = session.begin_checkpoint()
            parts = group.snapshot(without=without, whole=whole) | ({"ledger": session.ledger.snapshot()} if whole else {})
            told: list[str] = []
            files = write_parts(path, parts, copies=session.experiment.config.checkpoint.copies, told=told)
            session.tell_damage(told)
            left_out = [without] if without else []
            session.finish_checkpoint(path, files, left_out=left_out, whole=whole, kept=group.kept())
            return
        except (DiskError, UnrestorableError) as error:
            session.drop_checkpoint(str(error))
            if last and whole is kinds[-1]:
                raise

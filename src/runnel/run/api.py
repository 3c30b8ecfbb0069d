"""What a user calls: train, resume, load, evaluate, record. The command line calls the same functions."""

from __future__ import annotations

import dataclasses
import math
import shlex
import shutil
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from pathlib import Path

from runnel.core import user_code
from runnel.core.clock import WallClock
from runnel.core.config import flat, override, to_data
from runnel.core.contracts.evaluation import POLICY, EvalResult, Policy, Progress
from runnel.core.contracts.inference import Inferencer
from runnel.core.contracts.params import ParamSet
from runnel.core.disk import refused, told_if_refused
from runnel.core.errors import CheckpointError, ConfigError, DiskError, RunnelError
from runnel.core.resolve import refuse_while_loading
from runnel.core.resuming import check_changes
from runnel.core.routes import STORED
from runnel.flow.inference.inline import InlineClient
from runnel.graphs import user_objects
from runnel.graphs.env_config import OF_THE_ENV, other_env
from runnel.graphs.experiment import Experiment, describe
from runnel.graphs.run_config import RunConfig, one_budget
from runnel.nets.policy import EnvPolicy
from runnel.report.write import write_report
from runnel.run import registry
from runnel.run.best import BestParams
from runnel.run.budget import moved_schedules, rounded_up
from runnel.run.checkpoint import Checkpoints, Manifest, read_params
from runnel.run.dataflow import dataflow
from runnel.run.events import Event, PolicyNow
from runnel.run.export import EXPORTS, check_model_folder, export_policy
from runnel.run.launchers import check_ray, inproc, local
from runnel.run.ledger import Callbacks, Ledger
from runnel.run.live_settings import LiveSettings
from runnel.run.room import check_disk
from runnel.run.saved import client_of, open_run, params_of, serving, steps_at
from runnel.run.session import Session, catch_signals, how_to_go_on, tell_job
from runnel.run.stored import partner_params, pin_agents
from runnel.run.tracing import LauncherTrace
from runnel.run.trust import check_code, recipe_of, remember_run
from runnel.run.warm import MODEL, warm_learner, warm_params
from runnel.run.wiring import place
from runnel.run.zoo import about_zoo
from runnel.track.collapse import Watcher
from runnel.track.files import replace_file
from runnel.track.folder import Row, RunFolder, run_name
from runnel.track.live import LiveView, is_watched
from runnel.track.media import EpisodeFiles
from runnel.track.sinks import GuardedSink, find_sink, open_sinks
from runnel.track.status import make_end

FRESH_ROUND = 1 << 20
"""Evaluations during a run count up from 0. Those by hand start here, so that they play other episodes."""


@dataclasses.dataclass(frozen=True)
class Run:
    """A run that has ended: its folder, how it ended, and its last evaluation."""

    path: Path
    status: str
    """How it ended: one of `runnel.track.status.STATUSES`."""
    version: int
    steps: int
    tokens: int
    eval: Row | None
    train_s: float
    collapses: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """The warning of each kind of collapse that has not ended (docs/guides/collapse.md); empty for a run that went well."""
    interrupted: bool = False
    """Somebody stopped it from outside (Ctrl-C, SIGTERM, `runnel stop`, the board): `resume` goes on."""

    def __fspath__(self) -> str:
        """The path of its folder, so a run can be given wherever the path of one is accepted."""
        return str(self.path)

    def rows(self, kind: str = "update") -> list[Row]:
        """Rows of metrics.jsonl of one kind."""
        return [r for r in RunFolder(self.path).read_rows()[0] if r["kind"] == kind]

    def policy(self, *, best: bool = False) -> Policy:
        """The trained policy: the newest, or the one with the best evaluation."""
        return load(self.path, best=best)

    @property
    def best(self) -> Row | None:
        """Version and mean of the best evaluation whose parameters are kept."""
        best = BestParams(RunFolder(self.path).best).best()
        return None if best is None else {"version": best.version, "mean": best.mean}


def train(
    recipe: str,
    /,
    *,
    on_update: Callable[[Event], object] | None = None,
    on_episode: Callable[[Event], object] | None = None,
    on_eval: Callable[[Event], object] | None = None,
    on_checkpoint: Callable[[Event], object] | None = None,
    progress: bool | None = None,
    **settings: object,
) -> Run:
    """Train `recipe` (a name, or the path of your own file) with `settings` and return the finished run.

    Settings are fields of the recipe's config: `total_steps=50_000`, `ppo={"lr": 1e-3}`, or `**{"ppo.lr": 1e-3}`. Where a
    field names code (`env`, `network`, `task`), it also takes a class or a function. Callbacks get an `Event`: a row as a dict,
    with the policy of that moment and `log` for numbers of your own; one that returns False stops the run. `progress` shows how
    far it is: None in a terminal and in a notebook, True also elsewhere (a line every few seconds), False never.
    """
    refuse_while_loading("rl.train")
    module = registry.load_recipe(recipe)
    settings, objects = user_objects.name_objects(settings)
    config = registry.configure(module, settings)
    callbacks = Callbacks(on_update, on_episode, on_eval, on_checkpoint)
    return train_config(module.name, config, objects=objects, callbacks=callbacks, progress=progress)


def train_config(
    recipe: str,
    config: RunConfig,
    *,
    objects: Mapping[str, object] | None = None,
    callbacks: Callbacks | None = None,
    progress: bool | None = None,
    command: str = "",
    changes: Sequence[Row] = (),
) -> Run:
    """Train a resolved config. `objects` are in-process values (a lambda) that the config refers to by name; `progress` is as
    for `train`; `changes` of live settings (`RunFolder.read_changes` of another run) are made at the same versions again."""
    refuse_while_loading("rl.train_config")
    with user_objects.live_objects(objects or {}, config.launcher):
        config.check()
        _check_packages(config)
        config, told = config.settle()
        config, partners = pin_agents(config)
        experiment = registry.build(recipe, config)
        _check_machine(experiment)
        odd, (notes, warned) = _warn(experiment.look()), _about_budget(experiment)
        (warm, fell_back), learner = warm_params(experiment), warm_learner(experiment)
        folder = _create_folder(recipe, experiment, command)
        with _told_of_disk(folder), folder.held():
            session = _open_session(experiment, folder, callbacks)
            session.live = LiveSettings(folder, config, changes)
            session.warm_params, session.warm_learner = None if warm is None else dict(warm.params), learner
            session.notes = [*about_zoo(recipe, config), *told, *partners, *odd, *notes, *remember_run(folder)]
            session.warnings = [*warned, *fell_back]
            return _run(session, progress=progress)


def _about_budget(experiment: Experiment) -> tuple[list[str], list[str]]:
    """Notes and warnings about a budget whose last update goes beyond it."""
    text, much = rounded_up(experiment)
    if much:
        return [], _warn([text])
    return [text] if text else [], []


def _warn(texts: list[str]) -> list[str]:
    """Warn of `texts` now. The run's events will have them too."""
    for text in texts:
        warnings.warn(text, stacklevel=4)
    return texts


def resume(
    run: str | Path,
    *,
    on_update: Callable[[Event], object] | None = None,
    on_episode: Callable[[Event], object] | None = None,
    on_eval: Callable[[Event], object] | None = None,
    on_checkpoint: Callable[[Event], object] | None = None,
    progress: bool | None = None,
    trust: bool = False,
    **settings: object,
) -> Run:
    """Go on with a run from its newest good checkpoint; `total_steps` (or another budget) extends it. `trust`: as in `load`."""
    folder, module, saved = open_run(run, trust=trust, given=settings)
    own = check_code(folder.path, recipe_of(folder), saved, trust=trust, given=settings, training=True)
    settings, objects = user_objects.name_objects(settings)
    before = registry.absolute_paths(override(module.Config(), saved))
    config = registry.absolute_paths(one_budget(override(before, settings), settings))
    changes, history = check_changes(before, config, str(run)), folder.read_changes()
    callbacks = Callbacks(on_update, on_episode, on_eval, on_checkpoint)
    with user_objects.live_objects(objects, config.launcher), _told_of_disk(folder), folder.held():
        found = Checkpoints(folder.checkpoints).newest()
        _check_unspent(found[1], config)
        _check_packages(config)
        experiment = registry.build(module.name, config)
        _check_machine(experiment, held=sum(size for _, size in folder.checkpoint_sizes()))
        session = _open_session(experiment, folder, callbacks)
        session.live = LiveSettings(folder, config, history, forget=changes)
        session.hold()
        with _put_back(session, (folder.config, folder.info)):
            folder.write_config(to_data(config))
            graph, flow = _graph(experiment)
            folder.change_run_info(graph=graph, dataflow=flow)
            session.restore(*found)
            notes, warned = _about_budget(experiment)
            notes += remember_run(folder) if own else []
            session.notes = [f"{name} = {new!r} (was {old!r}): {then}" for name, (old, new, then) in changes.items()] + notes
            session.warnings = [*warned, *_warn(moved_schedules(before, config, found[1]))]
            return _run(session, progress=progress)


@contextmanager
def _told_of_disk(folder: RunFolder) -> Iterator[None]:
    """Turn errors of a full disk into one that says where, which checkpoint stands, and how to go on."""
    try:
        yield
    except (OSError, DiskError) as error:
        told = refused(error, folder.path)
        if told is None:
            raise
        raise type(told)(f"{told}. Once it can be written: {how_to_go_on(folder)}") from error


@contextmanager
def _put_back(session: Session, paths: Sequence[Path]) -> Iterator[None]:
    """If a resume fails before its workers are set up, write the old content of `paths` back, and explain what does not fit."""
    before = {path: path.read_bytes() for path in paths}
    try:
        yield
    except BaseException as error:
        if not session.started:
            for path, data in before.items():
                if path.read_bytes() != data:
                    with suppress(OSError):  # a full disk: the file then stays as it is
                        replace_file(path, data)
            _explain_misfit(error)
        raise


def load(run: str | Path, *, best: bool = False, trust: bool = False, **settings: object) -> Policy:
    """The policy of a run, with the parameters of its newest good checkpoint; `best`: of the version whose evaluation had the
    highest mean (of several the newest).

    `env=` is needed again only for a run that was trained with an in-process environment (a lambda). `trust=True` lets a run
    that you did not make here run the code that its folder names; without it, such a run is refused with a list of that code.
    """
    folder, module, saved = open_run(run, trust=trust, given=settings)
    settings, objects = user_objects.name_objects(settings)
    config = override(override(module.Config(), saved), settings)
    params = params_of(folder, best=best)
    with user_objects.live_objects(objects, "inproc"):
        policy, inferencer = registry.build_saved(module.name, config, settings).policy()
    try:
        inferencer.load_params(params)
    except (RuntimeError, KeyError) as error:  # what torch raises for other shapes, and for other names
        _explain_misfit(error)
        raise
    return policy


def export(run: str | Path, folder: str | Path, *, format: str = "", best: bool = False, trust: bool = False) -> Path:
    """Write the policy of a run for other programs, the newest or the `best` one; returns the folder.

    `hf` (what a language model is written as): a folder that plain transformers loads, with its tokenizer. `torch` (what others
    are written as) and `onnx`: the greedy policy as one graph, policy.pt2 or policy.onnx, and policy.json, which says how to
    call it. `trust`: as in `load`.
    """
    source, module, saved = open_run(run, trust=trust)
    config, params = override(module.Config(), saved), params_of(source, best=best)
    experiment = registry.build_saved(module.name, config)
    kind = format or ("torch" if experiment.export is None else "hf")
    if kind not in EXPORTS:
        raise ConfigError("format", format, f"unknown; use one of {', '.join(EXPORTS)}")
    if experiment.export is not None:
        if kind != "hf":
            raise ConfigError("format", format, "a language model is exported as hf: tokens in, tokens out is no single graph")
        check_model_folder(Path(folder))
        experiment.export(params.params, Path(folder))
        return Path(folder)
    policy, inferencer = experiment.policy()
    if kind == "hf" or not isinstance(policy, EnvPolicy):
        no_graph = "its policy is not one network over observations"
        raise ConfigError("format", kind, "hf is for language models; use torch or onnx" if kind == "hf" else no_graph)
    inferencer.load_params(params)
    about = {"run": source.path.name, "recipe": module.name, "env": experiment.title, "version": params.version}
    return export_policy(policy, Path(folder), format=kind, about=about)


def evaluate_run(
    run: str | Path,
    *,
    episodes: int = 100,
    seed: int = 0,
    settings: Mapping[str, object] | None = None,
    progress: Progress | None = None,
    best: bool = False,
    trust: bool = False,
) -> EvalResult:
    """Measure the policy of a run, the newest or the `best` one, on `episodes` fresh episodes of its own task. `settings`
    change its config; with `env`, `env_kwargs` or `wrappers` it plays another environment of the same spaces.
    `trust`: as in `load`."""
    folder, module, saved = open_run(run, trust=trust, given=settings or ())
    before = override(module.Config(), saved)
    config = override(before, {"eval.episodes": episodes, **(settings or {})})
    if OF_THE_ENV & {*(settings or {})}:
        config = other_env(before, config)
    experiment = registry.build_saved(module.name, config, settings or ())
    spec = experiment.evaluation
    if spec is None:
        raise ConfigError("run", str(run), "its recipe has no evaluation; load the policy and play it yourself")
    with client_of(folder, spec, best=best) as client, ExitStack() as stack:
        evaluation = spec.make()
        stack.callback(evaluation.close)
        others = {name: stack.enter_context(_other(folder, experiment, *asked)) for name, asked in spec.others.items()}
        return evaluation.run({**others, POLICY: client}, round_index=FRESH_ROUND + seed, progress=progress)


def record(
    run: str | Path,
    *,
    episodes: int = 1,
    out: str | Path | None = None,
    seed: int = 0,
    max_steps: int = 2_000,
    fps: float = 0.0,
    progress: Progress | None = None,
    best: bool = False,
    trust: bool = False,
) -> list[Path]:
    """Record episodes of a run's newest (or `best`) policy as video, beside those it has in its folder or in the folder `out`;
    returns the files. `seed` another number: other episodes. `fps` 0: as the environment says. `trust`: as in `load`."""
    folder, module, saved = open_run(run, trust=trust)
    asked = {"record.videos": episodes, "record.max_steps": max_steps, "record.fps": fps, "eval.episodes": 1}
    if episodes < 1:
        raise ConfigError("episodes", episodes, "record at least 1")
    experiment = registry.build_saved(module.name, override(override(module.Config(), saved), asked), asked)
    _check_recorder(experiment)
    spec = experiment.evaluation
    assert spec is not None, "the experiment has checked it"
    assert spec.recorder is not None, "the experiment has checked it"
    files = EpisodeFiles(folder.episodes if out is None else Path(out), keep=sys.maxsize)
    with ExitStack() as stack:
        if out is None:
            stack.enter_context(folder.held())
        client = stack.enter_context(client_of(folder, spec, best=best))
        steps = steps_at(folder, client.version)
        made = spec.recorder().run(client, round_index=FRESH_ROUND + seed, progress=progress)
        rows = [files.add(event, version=client.version, steps=steps, again=True) for event in made]
    return [files.folder / row["file"] for row in rows]


@contextmanager
def _other(folder: RunFolder, e: Experiment, make: Callable[[], Inferencer], channel: str) -> Iterator[InlineClient]:
    """What else an evaluation asks, with the parameters that another trainer had in the newest good checkpoint, or those of a
    stored policy."""
    params = ParamSet(0, partner_params(channel) if channel.startswith(STORED) else {})
    if channel and not channel.startswith(STORED):
        part = "params" if channel == e.leader.channel else f"params-{e.publisher_of(channel)}"
        path, manifest, _ = Checkpoints(folder.checkpoints).newest((part,))
        params = ParamSet(manifest["version"], read_params(path, part))
    with serving(make(), params) as client:
        yield client


def _create_folder(recipe: str, experiment: Experiment, command: str) -> RunFolder:
    """Make the folder of a new run, with its config.json and run.json."""
    config, now, (graph, flow) = experiment.config, datetime.now(), _graph(experiment)
    name = config.name or run_name(Path(recipe).stem, experiment.title, seed=config.seed, when=now)
    folder = RunFolder.create(config.out, name)
    try:
        folder.write_config(to_data(config))
        folder.write_run_info(
            recipe=recipe,
            command=command or " ".join(sys.argv),
            seed=config.seed,
            created=now,
            subject=experiment.title,
            graph=graph,
            dataflow=flow,
        )
    except DiskError as error:
        shutil.rmtree(folder.path, ignore_errors=True)
        raise ConfigError("out", config.out, f"{error}; free some, or give another place") from error
    return folder


def _check_packages(config: RunConfig) -> None:
    """Refuse sinks and a launcher that are not installed, before anything is built."""
    for name in config.track:
        find_sink(name)
    if config.launcher == "ray":
        check_ray("launcher")


def _check_machine(experiment: Experiment, *, held: int = 0) -> None:
    """Refuse videos that cannot be made here, data that are not here, and checkpoints that will not fit on the disk. `held` is
    as for `check_disk`."""
    if experiment.config.record.videos:
        _check_recorder(experiment)
    if experiment.check_here is not None:
        experiment.check_here()
    check_disk(experiment, held=held)


def _check_recorder(experiment: Experiment) -> None:
    spec = experiment.evaluation
    if spec is not None and spec.check_recorder is not None:
        spec.check_recorder()


def _graph(experiment: Experiment) -> tuple[str, Row]:
    """The graph of a run in words and as data."""
    groups = place(experiment)
    return describe(experiment, groups), dataflow(experiment, groups)


def _open_session(experiment: Experiment, folder: RunFolder, callbacks: Callbacks | None) -> Session:
    config, clock = experiment.config, WallClock()
    checkpoints = Checkpoints(folder.checkpoints, keep=config.checkpoint.keep)
    ledger = Ledger(
        folder,
        clock,
        callbacks=callbacks,
        stop_return=config.eval.stop_return,
        log_every=config.log_every,
        keep_videos=config.record.keep,
        watcher=_watcher(experiment),
        stop_on=config.stop_on,
        policy=PolicyNow(experiment.policy),
    )
    return Session(experiment, place(experiment), folder, ledger, checkpoints, clock, beginning=ledger.nothing())


def _watcher(experiment: Experiment) -> Watcher:
    """The watcher for a collapse. Its advice may name the settings that this run reads, and no others."""
    unread = tuple(f"{name}." for name in experiment.config.unused())
    settings = {k: v for k, v in flat(to_data(experiment.config)).items() if not f"{k}.".startswith(unread)}
    return Watcher(settings, world="language" if experiment.leader.token_streams else "environment")


def _run(session: Session, *, progress: bool | None) -> Run:
    experiment, folder, ledger = session.experiment, session.folder, session.ledger
    ledger.view = _view(experiment) if progress or (progress is None and is_watched()) else None
    session.when_started(lambda: ledger.attach(_open_sinks(session)))
    for text in session.notes:
        ledger.note(text)
    for text in session.warnings:
        ledger.note(text, level="warning")
    if session.resume_from is None:
        session.beginning = ledger.snapshot()
    start, status = time.perf_counter(), "failed"
    try:
        _open_control(session)
        tell_job(folder.path)
        with catch_signals(session.interrupted):
            status = _launch(session)
        if experiment.export is not None and status != "interrupted":
            _export_own(session)
    except BaseException as error:
        named = isinstance(error, RunnelError)
        with suppress(DiskError):  # a full disk must not hide the first error
            ledger.note(f"{type(error).__name__}: {error}" if named else user_code.told(error), level="error")
        raise
    finally:
        with suppress(OSError):
            folder.close_control()
        seconds = time.perf_counter() - start
        try:
            ledger.end(status, seconds)
        except DiskError:
            if status != "failed":
                raise
        finally:
            ledger.close()
        if not session.held and not ledger.refused:
            _report(folder)
    counts = (ledger.version, ledger.steps, ledger.tokens)
    end = make_end(status)
    return Run(folder.path, end["status"], *counts, ledger.last_eval, seconds, dict(ledger.collapses), end["interrupted"])


def _launch(session: Session) -> str:
    """Run the session on its launcher; returns the status."""
    launcher = session.experiment.config.launcher
    if launcher == "ray":
        from runnel.run.launchers import ray  # an extra: imported only for runs that use it

        return ray.launch(session)
    return inproc.launch(session) if launcher == "inproc" else local.launch(session)


def _open_sinks(session: Session) -> list[GuardedSink]:
    config, folder = session.experiment.config, session.folder.path

    def warn(text: str) -> None:
        session.ledger.note(text, level="warning")

    sinks = open_sinks(config.track, folder, to_data(config), warn)
    if config.trace:
        sinks.append(GuardedSink("trace", lambda: LauncherTrace(config, folder, session), warn))
    return sinks


def _report(folder: RunFolder) -> None:
    """Write the report. A failure is only warned of: the trained run is worth more than its report."""
    try:
        with told_if_refused(folder.path):
            write_report([folder.path])
    except (ConfigError, DiskError) as error:
        told = refused(error.__cause__ or error, folder.path) or error
        later = f"`runnel report {shlex.quote(str(folder.path))}` writes it later"
        print(f"runnel: warning: the report was not written: {told}; {later}", file=sys.stderr)


def _export_own(session: Session) -> None:
    """The run's model as a folder that other programs load. Without room for it, its checkpoint still has the parameters."""
    export, folder = session.experiment.export, session.folder.path
    assert export is not None
    try:
        fix = f"`runnel export {folder} FOLDER` does it elsewhere"
        with told_if_refused(folder, what="the model was not exported", fix=fix):
            export(session.checkpoints.newest_params().params, folder / MODEL)
    except DiskError as error:
        shutil.rmtree(folder / f"{MODEL}.new", ignore_errors=True)
        session.ledger.note(str(error), level="warning")
        print(f"runnel: warning: {error}", file=sys.stderr)


def _open_control(session: Session) -> None:
    """Make a new control token. The token of an earlier start becomes invalid, also where `control` is off."""
    session.folder.close_control()
    if session.experiment.config.control:
        print(f"control token: {session.folder.open_control()}; the board asks for it", file=sys.stderr, flush=True)


def _check_unspent(manifest: Manifest, config: RunConfig) -> None:
    """Refuse to resume a run that has spent its budget, before any file changes."""
    spent_of = {"total_steps": manifest["steps"], "total_updates": manifest["version"], "total_tokens": manifest["tokens"]}
    for field, spent in spent_of.items():
        if spent >= (getattr(config, field) or math.inf):
            raise ConfigError(field, getattr(config, field), "this run has spent its budget; resume it with a larger one")


def _explain_misfit(error: BaseException) -> None:
    """Raise a `CheckpointError` for a checkpoint that did not load: what the settings name has changed."""
    if isinstance(error, Exception) and not isinstance(error, RunnelError | OSError) and not user_code.is_users(error):
        why = "the environment, the network or the data is not what it was"
        text = f"the checkpoint does not fit the run as it is set up now; {why} ({type(error).__name__}: {error})"
        raise CheckpointError(text) from error


def _view(experiment: Experiment) -> LiveView:
    """The live view, in the unit of the first budget that is set. A config without a budget was refused."""
    config = experiment.config
    unit = next(unit for unit in ("steps", "tokens", "updates") if getattr(config, f"total_{unit}"))
    return LiveView(title=experiment.title, total=getattr(config, f"total_{unit}"), unit=unit)

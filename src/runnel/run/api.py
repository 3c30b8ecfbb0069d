"""What a user calls: train, resume, load, evaluate, record. The command line calls the same functions."""

from __future__ import annotations

import dataclasses
import math
import shutil
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from runnel.core.clock import WallClock
from runnel.core.config import flat, override, to_data
from runnel.core.errors import CheckpointError, ConfigError, DiskFullError, RunnelError
from runnel.core.protocols import EvalResult, ParamSet, Policy, Progress
from runnel.core.resuming import check_changes
from runnel.flow.inference import InlineClient
from runnel.flow.params import ChannelSubscriber, LocalChannel
from runnel.nets.lora import SCALE
from runnel.nets.policy import EnvPolicy
from runnel.run import registry
from runnel.run.budget import moved_schedules, rounded_up
from runnel.run.checkpoint import Checkpoints, told_if_full
from runnel.run.dataflow import dataflow
from runnel.run.experiment import EvaluationSpec, Experiment, RunConfig, describe, one_budget
from runnel.run.export import EXPORTS, check_model_folder, export_policy
from runnel.run.launchers import inproc, local
from runnel.run.ledger import Callbacks, Ledger
from runnel.run.room import check_disk
from runnel.run.session import Session, catch_signals
from runnel.run.tracing import LauncherTrace
from runnel.run.warm import MODEL, check_same_model
from runnel.run.wiring import place
from runnel.track.collapse import Watcher
from runnel.track.folder import RunFolder, run_name
from runnel.track.live import LiveView
from runnel.track.media import EpisodeFiles
from runnel.track.report import write_report
from runnel.track.sinks import GuardedSink, find_sink, open_sinks

FRESH_ROUND = 1 << 20
"""Evaluations during a run count up from 0; those by hand start here, so that their episodes are others."""


def _launch_ray(session: Session) -> str:
    try:
        from runnel.run.launchers import ray
    except ImportError as error:
        raise ConfigError("launcher", "ray", f"needs Ray: pip install 'runnel[ray]' ({error})") from error
    return ray.launch(session)


LAUNCHERS: dict[str, Callable[[Session], str]] = {"inproc": inproc.launch, "local": local.launch, "ray": _launch_ray}


@dataclasses.dataclass(frozen=True)
class Run:
    """A run that has ended: where it lies, how it ended, what its last evaluation said."""

    path: Path
    status: str
    version: int
    steps: int
    tokens: int
    eval: Mapping[str, Any] | None
    train_s: float
    collapses: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """What was told of each kind of collapse that is not over (docs/collapse.md); empty for a run that went well."""

    def rows(self, kind: str = "update") -> list[dict[str, Any]]:
        """Rows of metrics.jsonl of one kind."""
        return [r for r in RunFolder(self.path).read_rows()[0] if r["kind"] == kind]

    def policy(self) -> Policy:
        """The trained policy."""
        return load(self.path)


def train(
    recipe: str,
    /,
    *,
    on_update: Callable[[dict[str, Any]], Any] | None = None,
    on_episode: Callable[[dict[str, Any]], Any] | None = None,
    on_eval: Callable[[dict[str, Any]], Any] | None = None,
    on_checkpoint: Callable[[dict[str, Any]], Any] | None = None,
    live: bool = False,
    **settings: Any,
) -> Run:
    """Train `recipe` (a name, or the path of your own file) with `settings` and return the finished run.

    Settings are fields of the recipe's config: `total_steps=50_000`, `ppo={"lr": 1e-3}`, or `**{"ppo.lr": 1e-3}`. Where a
    field names code (`env`, `network`, `task`), it also takes a class or a function. Callbacks get a row as a dict; one that
    returns False stops the run.
    """
    module = registry.load_recipe(recipe)
    settings, objects = registry.name_objects(settings)
    config = registry.configure(module, settings)
    callbacks = Callbacks(on_update, on_episode, on_eval, on_checkpoint)
    return train_config(module.name, config, objects=objects, callbacks=callbacks, live=live)


def train_config(
    recipe: str,
    config: RunConfig,
    *,
    objects: Mapping[str, Any] | None = None,
    callbacks: Callbacks | None = None,
    live: bool = False,
    command: str = "",
) -> Run:
    """Train a resolved config. `objects` are in-process values (a lambda) that the config refers to by name."""
    with registry.live_objects(objects or {}, config.launcher):
        config.check()
        _check_sinks(config)
        config, told = config.settle()
        experiment = registry.build(recipe, config)
        _check_recording(experiment)
        check_disk(experiment)
        odd, (notes, warned) = _warn(experiment.look()), _about_budget(experiment)
        warm, fell_back = _warm_params(experiment)
        folder = _create_folder(recipe, experiment, command)
        with folder.held():
            session = _open_session(experiment, folder, callbacks)
            session.warm_params = None if warm is None else dict(warm.params)
            session.notes, session.warnings = [*told, *odd, *notes], [*warned, *fell_back]
            return _run(session, live=live)


def _about_budget(experiment: Experiment) -> tuple[list[str], list[str]]:
    """Notes and warnings about a budget that comes to more than was asked for."""
    text, much = rounded_up(experiment)
    if much:
        return [], _warn([text])
    return [text] if text else [], []


def _check_sinks(config: RunConfig) -> None:
    """Refuse sinks that are not there, before anything is written."""
    for name in config.track:
        find_sink(name)


def _warn(texts: list[str]) -> list[str]:
    """Warn of `texts` at once; they are told in the run's events too."""
    for text in texts:
        warnings.warn(text, stacklevel=4)
    return texts


def resume(
    run: str | Path,
    *,
    on_update: Callable[[dict[str, Any]], Any] | None = None,
    on_episode: Callable[[dict[str, Any]], Any] | None = None,
    on_eval: Callable[[dict[str, Any]], Any] | None = None,
    on_checkpoint: Callable[[dict[str, Any]], Any] | None = None,
    live: bool = False,
    **settings: Any,
) -> Run:
    """Go on with a run from its newest good checkpoint; `total_steps` (or another budget) extends it."""
    folder, module, saved = _open_run(run)
    settings, objects = registry.name_objects(settings)
    before = registry.absolute_paths(override(module.Config(), saved))
    config = registry.absolute_paths(one_budget(override(before, settings), settings))
    changes = check_changes(before, config, str(run))
    callbacks = Callbacks(on_update, on_episode, on_eval, on_checkpoint)
    with registry.live_objects(objects, config.launcher), folder.held():
        found = Checkpoints(folder.checkpoints).newest()
        _check_unspent(found[1], config)
        _check_sinks(config)
        experiment = registry.build(module.name, config)
        _check_recording(experiment)
        check_disk(experiment, held=sum(size for _, size in folder.checkpoint_sizes()))
        session = _open_session(experiment, folder, callbacks)
        session.hold()
        with _put_back(session, (folder.config, folder.info)):
            folder.write_config(to_data(config))
            folder.change_run_info(**_graph(experiment))
            session.restore(*found)
            notes, warned = _about_budget(experiment)
            session.notes = [f"{name} = {new!r} (was {old!r}): {then}" for name, (old, new, then) in changes.items()] + notes
            session.warnings = [*warned, *_warn(moved_schedules(before, config, found[1]))]
            return _run(session, live=live)


@contextmanager
def _put_back(session: Session, paths: Sequence[Path]) -> Iterator[None]:
    """A resume that fails before its workers are set up leaves `paths` as they were, and names what does not fit."""
    before = {path: path.read_bytes() for path in paths}
    try:
        yield
    except BaseException as error:
        if not session.started:
            for path, data in before.items():
                path.write_bytes(data)
            _explain_misfit(error)
        raise


def load(run: str | Path, **settings: Any) -> Policy:
    """The policy of a run, with the parameters of its newest good checkpoint.

    `env=` is needed again only for a run that was trained with an in-process environment (a lambda).
    """
    folder, module, saved = _open_run(run)
    settings, objects = registry.name_objects(settings)
    config = override(override(module.Config(), saved), settings)
    params = Checkpoints(folder.checkpoints).newest_params()
    with registry.live_objects(objects, "inproc"):
        policy, inferencer = registry.build_saved(module.name, config, settings).policy()
    inferencer.load_params(params)
    return policy


def export(run: str | Path, folder: str | Path, *, format: str = "") -> Path:
    """Write the policy of a run for other programs; returns the folder.

    `hf` (what a language model is written as): a folder that plain transformers loads, with its tokenizer. `torch` (what others
    are written as) and `onnx`: the greedy policy as one graph, policy.pt2 or policy.onnx, and policy.json, which says how to
    call it.
    """
    source, module, saved = _open_run(run)
    config, params = override(module.Config(), saved), Checkpoints(source.checkpoints).newest_params()
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
    settings: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> EvalResult:
    """Measure the policy of a run on `episodes` fresh episodes of its own task; `settings` change its config."""
    folder, module, saved = _open_run(run)
    config = override(override(module.Config(), saved), {"eval.episodes": episodes, **(settings or {})})
    spec = registry.build_saved(module.name, config, settings or ()).evaluation
    if spec is None:
        raise ConfigError("run", str(run), "its recipe has no evaluation; load the policy and play it yourself")
    with _newest_client(folder, spec) as client, ExitStack() as stack:
        evaluation = spec.make()
        stack.callback(evaluation.close)
        return evaluation.run(client, round_index=FRESH_ROUND + seed, progress=progress)


def record(
    run: str | Path,
    *,
    episodes: int = 1,
    out: str | Path | None = None,
    seed: int = 0,
    max_steps: int = 2_000,
    fps: float = 0.0,
    progress: Progress | None = None,
) -> list[Path]:
    """Record episodes of a run's newest policy as video, beside those it has in its folder or in the folder `out`; returns the
    files. `seed` another number: other episodes. `fps` 0: as the environment says."""
    folder, module, saved = _open_run(run)
    asked = {"record.videos": episodes, "record.max_steps": max_steps, "record.fps": fps, "eval.episodes": 1}
    if episodes < 1:
        raise ConfigError("episodes", episodes, "record at least 1")
    experiment = registry.build_saved(module.name, override(override(module.Config(), saved), asked), asked)
    _check_recording(experiment)
    spec = experiment.evaluation
    assert spec is not None, "the experiment has checked it"
    assert spec.recorder is not None, "the experiment has checked it"
    files = EpisodeFiles(folder.episodes if out is None else Path(out), keep=sys.maxsize)
    with ExitStack() as stack:
        if out is None:
            stack.enter_context(folder.held())
        client = stack.enter_context(_newest_client(folder, spec))
        steps = Checkpoints(folder.checkpoints).newest(("params",))[1]["steps"]
        made = spec.recorder().run(client, round_index=FRESH_ROUND + seed, progress=progress)
        rows = [files.add(event, version=client.version, steps=steps, again=True) for event in made]
    return [files.folder / row["file"] for row in rows]


@contextmanager
def _newest_client(folder: RunFolder, spec: EvaluationSpec) -> Iterator[InlineClient]:
    """The policy of a run's newest good checkpoint, as its evaluation asks it."""
    params = Checkpoints(folder.checkpoints).newest_params()
    channel = LocalChannel("policy", shared=False, depth=1)
    channel.publish(params.version, params.params)
    client = InlineClient(spec.inferencer(), ChannelSubscriber(channel))
    try:
        client.sync()
        yield client
    finally:
        client.close()


def _open_run(run: str | Path) -> tuple[RunFolder, registry.Recipe, dict[str, Any]]:
    """A run's folder, recipe and config. Without its own config a run would be taken for one of the recipe's defaults."""
    folder = RunFolder.open(run)
    for path in (folder.info, folder.config):
        if not path.is_file():
            raise ConfigError("run", str(run), f"its {path.name} is missing; restore that file")
    return folder, registry.load_recipe(folder.read_run_info()["recipe"]), folder.read_config()


def _warm_params(experiment: Experiment) -> tuple[ParamSet | None, list[str]]:
    """What `init_from` starts a run with, and what to tell of it."""
    config = experiment.config
    if not config.init_from:
        return None, []
    source = RunFolder.open(config.init_from)
    check_same_model(config, source)
    told: list[str] = []
    found = Checkpoints(source.checkpoints).newest_params(told)
    if SCALE in found.params:
        fix = f"its checkpoints hold adapters alone; start from its merged model: --model {source.path / MODEL}"
        raise ConfigError("init_from", config.init_from, fix)
    if experiment.export is None:  # of a language model its config was compared
        _check_fits(experiment, found)
    return found, [f"init_from {config.init_from!r}: {text}" for text in told]


def _check_fits(experiment: Experiment, found: ParamSet) -> None:
    """Refuse parameters of another network while nothing of the run is there yet."""
    try:
        experiment.policy()[1].load_params(found)
    except (RuntimeError, KeyError) as error:  # what torch raises for other shapes, and for other names
        fix = f"that run has another network than this one; use the same ({str(error).strip().splitlines()[-1].strip()})"
        raise ConfigError("init_from", experiment.config.init_from, fix) from error


def _create_folder(recipe: str, experiment: Experiment, command: str) -> RunFolder:
    config, now = experiment.config, datetime.now()
    name = config.name or run_name(Path(recipe).stem, experiment.title, seed=config.seed, when=now)
    folder = RunFolder.create(config.out, name)
    folder.write_config(to_data(config))
    folder.write_run_info(
        recipe=recipe,
        command=command or " ".join(sys.argv),
        seed=config.seed,
        created=now,
        subject=experiment.title,
        **_graph(experiment),
    )
    return folder


def _check_recording(experiment: Experiment) -> None:
    """Refuse videos that could not be made, before anything starts."""
    spec = experiment.evaluation
    if experiment.config.record.videos and spec is not None and spec.check_recorder is not None:
        spec.check_recorder()


def _graph(experiment: Experiment) -> dict[str, Any]:
    """The graph of a run in words and as data."""
    groups = place(experiment)
    return {"graph": describe(experiment, groups), "dataflow": dataflow(experiment, groups)}


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
    )
    return Session(experiment, place(experiment), folder, ledger, checkpoints, clock, beginning=ledger.nothing())


def _watcher(experiment: Experiment) -> Watcher:
    """Looks for a collapse; it may name every setting that this run reads."""
    unread = tuple(f"{name}." for name in experiment.config.unused())
    settings = {k: v for k, v in flat(to_data(experiment.config)).items() if not f"{k}.".startswith(unread)}
    return Watcher(settings, world="language" if experiment.token_streams else "environment")


def _run(session: Session, *, live: bool) -> Run:
    experiment, folder, ledger = session.experiment, session.folder, session.ledger
    config = experiment.config

    ledger.view = _view(experiment) if live else None
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
        with catch_signals(session.interrupted):
            status = LAUNCHERS[config.launcher](session)
        if experiment.export is not None and status != "interrupted":
            _export_own(session)
    except BaseException as error:
        ledger.note(f"{type(error).__name__}: {error}", level="error")
        raise
    finally:
        folder.close_control()
        seconds = time.perf_counter() - start
        ledger.end(status, seconds)
        ledger.close()
        if not session.held:
            _report(folder)
    counts = (ledger.version, ledger.steps, ledger.tokens)
    return Run(folder.path, status, *counts, ledger.last_eval, seconds, dict(ledger.collapses))


def _open_sinks(session: Session) -> list[GuardedSink]:
    config, folder = session.experiment.config, session.folder.path

    def warn(text: str) -> None:
        session.ledger.note(text, level="warning")

    sinks = open_sinks(config.track, folder, to_data(config), warn)
    if config.trace:
        sinks.append(GuardedSink("trace", lambda: LauncherTrace(config, folder, session), warn))
    return sinks


def _report(folder: RunFolder) -> None:
    try:
        write_report([folder.path])
    except ConfigError as error:  # a full disk: what was learned is worth more than its picture
        print(f"runnel: warning: {error}", file=sys.stderr)


def _export_own(session: Session) -> None:
    """The run's model as a folder that other programs load. Without room for it, its checkpoint still has the parameters."""
    export, folder = session.experiment.export, session.folder.path
    assert export is not None
    try:
        with told_if_full(folder, f"the model was not exported (`runnel export {folder} FOLDER` does it elsewhere)"):
            export(session.checkpoints.newest_params().params, folder / MODEL)
    except DiskFullError as error:
        shutil.rmtree(folder / f"{MODEL}.new", ignore_errors=True)
        session.ledger.note(str(error), level="warning")
        print(f"runnel: warning: {error}", file=sys.stderr)


def _open_control(session: Session) -> None:
    """A token is of one start of a run; without `control` an old one is good no more."""
    session.folder.close_control()
    if session.experiment.config.control:
        print(f"control token: {session.folder.open_control()}; the board asks for it", file=sys.stderr, flush=True)


def _check_unspent(manifest: Mapping[str, Any], config: RunConfig) -> None:
    """A run that has spent its budget is refused before anything of it is touched."""
    spent_of = {"total_steps": manifest["steps"], "total_updates": manifest["version"], "total_tokens": manifest["tokens"]}
    for field, spent in spent_of.items():
        if spent >= (getattr(config, field) or math.inf):
            raise ConfigError(field, getattr(config, field), "this run has spent its budget; resume it with a larger one")


def _explain_misfit(error: BaseException) -> None:
    """A checkpoint that did not load, with settings that may change: then what they name has changed."""
    if isinstance(error, Exception) and not isinstance(error, RunnelError | OSError):
        why = "the environment, the network or the data is not what it was"
        text = f"the checkpoint does not fit the run as it is set up now; {why} ({type(error).__name__}: {error})"
        raise CheckpointError(text) from error


def _view(experiment: Experiment) -> LiveView:
    config = experiment.config
    for unit in ("steps", "tokens", "updates"):
        total = getattr(config, f"total_{unit}")
        if total:
            return LiveView(title=experiment.title, total=total, unit=unit)
    raise ConfigError("total_steps", None, "a run needs a budget; set total_steps, total_updates or total_tokens")

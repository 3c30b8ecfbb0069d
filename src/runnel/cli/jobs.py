"""`runnel submit`, `ps`, `logs`, `stop`, `scale`, `set`, `add-tasks` and `attach`: a run as a job.

A run is named by its folder, and orders for it are files in that folder: everyone who may write there may give orders. A run
that was submitted to a Ray cluster is also a Ray job, named by the id that `submit` printed.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from runnel.board.library import run_folders
from runnel.cli.arguments import add_trust, make_parser
from runnel.core.errors import ConfigError
from runnel.core.resolve import own_name
from runnel.core.state import JsonObject
from runnel.run.names import JOB_RUN
from runnel.track.files import NotRegularError, open_regular, read_regular, size_of
from runnel.track.folder import Row, RunFolder
from runnel.track.live import LiveView
from runnel.track.status import read_end, status_of

ADDRESS = "http://127.0.0.1:8265"
JOB = "raysubmit_"
POLL_S = 0.5
STOP_WAIT = "RAY_JOB_STOP_WAIT_TIME_S"
STOP_WAIT_S = 600
"""Time until Ray kills a job that was told to stop. Ray's default of 3 s is too short for a checkpoint."""
JOB_CLIENT = "jobs need Ray's job client: pip install 'runnel[jobs]' ({})"
_WORKERS = {"actor": "actor", "policy": "policy worker"}


# --------------------------------------------------------------------------------------------------------------- commands
def submit(args: list[str]) -> int:
    """Hand a run to a Ray cluster as a job."""
    parser = make_parser("submit", "Run `runnel train ...` as a job of a Ray cluster.")
    parser.add_argument("--address", default=ADDRESS, help=f"the cluster's job server ({ADDRESS})")
    parser.add_argument("--working-dir", default=".", help="folder that is sent along: your environments, recipes, data (.)")
    parser.add_argument("--python", default="python", help="the cluster's Python that has runnel (python)")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="train RECIPE [--field value ...], or resume RUN")
    parsed = parser.parse_args(args)
    words = parsed.command[1:] if parsed.command[:1] == ["--"] else parsed.command
    line = entrypoint(words, python=parsed.python)
    env = {"working_dir": parsed.working_dir, "env_vars": {STOP_WAIT: str(STOP_WAIT_S)}}
    job = _client(parsed.address).submit_job(entrypoint=line, runtime_env=env)
    print(job)
    print(f"follow it with: runnel attach {job} --address {parsed.address}", file=sys.stderr)
    return 0


def ps(args: list[str]) -> int:
    """List runs, and the jobs of a cluster."""
    parser = make_parser("ps", "Runs in a folder and in the folders below it, newest last: what they do, how far they are.")
    parser.add_argument("folder", nargs="?", default="runs", type=Path, help="folder of runs (runs)")
    parser.add_argument("--trials", action="store_true", help="also the trials of tuning studies")
    parser.add_argument("--address", default="", help="also list the jobs of the Ray cluster with this job server")
    parsed = parser.parse_args(args)
    found = [RunFolder(path) for path in sorted(run_folders(parsed.folder).values(), key=_made)]
    shown = [folder for folder in found if parsed.trials or not _is_trial(folder)]
    rows = [describe_run(folder) for folder in shown]
    if parsed.address:
        rows += [[j.submission_id or "", j.status, "", j.entrypoint] for j in _client(parsed.address).list_jobs()]
    if len(shown) < len(found):
        print(f"trials of tuning studies that are not shown: {len(found) - len(shown)} (--trials shows them)", file=sys.stderr)
    if not rows:
        print(f"no runs below {parsed.folder}")
        return 0
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    for row in rows:
        print("  ".join([*(text.ljust(width) for text, width in zip(row, widths, strict=False)), row[3]]))
    return 0


def logs(args: list[str]) -> int:
    """Print what a run's processes have printed."""
    parser = make_parser("logs", "What the processes of a run have printed, and what the run has told.")
    _add_target(parser)
    parser.add_argument("--follow", "-f", action="store_true", help="go on until the run ends")
    parsed = parser.parse_args(args)
    if parsed.run.startswith(JOB):
        return _job_logs(parsed.run, parsed.address, follow=parsed.follow)
    folder = RunFolder.open(parsed.run)
    print(_log(folder), end="")
    for row in rows_of(folder, follow=parsed.follow):
        if row.get("kind") == "event":
            print(f"{row.get('level', 'info')}: {row.get('text', '')}")
    return 0


def stop(args: list[str]) -> int:
    """End a run cleanly, with a checkpoint."""
    parser = make_parser("stop", "End a run at its next version, with a checkpoint; `runnel resume` goes on from there.")
    _add_target(parser)
    parser.add_argument("--wait", action="store_true", help="return when it has ended")
    parsed = parser.parse_args(args)
    if parsed.run.startswith(JOB):
        return _stop_job(parsed.run, parsed.address, wait=parsed.wait)
    _order_stop(_running(parsed.run), wait=parsed.wait)
    return 0


def scale(args: list[str]) -> int:
    """Change the number of actors or policy workers of a run that goes on."""
    parser = make_parser("scale", "Change how many actors or policy workers a run has, while it goes on.")
    parser.add_argument("run", help="the run's folder")
    parser.add_argument("--actors", type=int, help="actors from now on")
    parser.add_argument("--policy-workers", type=int, help="policy workers from now on")
    parsed = parser.parse_args(args)
    folder = _running(parsed.run)
    config = folder.read_config()
    placement, numbers = config["placement"], dict[str, int]()
    if parsed.actors is not None:
        numbers["actor"] = _checked("actor", parsed.actors, placement, "max_actors", config["num_actors"])
    if parsed.policy_workers is not None:
        now = placement["policy_workers"]
        numbers["policy"] = _checked("policy", parsed.policy_workers, placement, "max_policy_workers", now)
    if not numbers:
        raise ConfigError("--actors", None, "say how many: --actors N or --policy-workers N")
    folder.add_order({"op": "scale", "numbers": numbers})
    told = " and ".join(f"{number} {_WORKERS[kind]}{'s' * (number > 1)}" for kind, number in numbers.items())
    print(f"asked for {told}; the run says when that is done (runnel logs {folder.path})")
    return 0


def set_live(args: list[str]) -> int:
    """Change settings of a run that goes on."""
    from runnel.run.live_settings import change_settings  # needs torch, which the other commands here do not

    about = "Give live settings of a run new values while it goes on: learning rates, coefficients. The run notes the change."
    parser = make_parser("set", about)
    parser.add_argument("run", help="the run's folder")
    parser.add_argument(
        "settings", nargs="*", metavar="NAME=VALUE", help="ppo.lr=1e-4; of one member of a team red/ppo.lr=1e-4"
    )
    add_trust(parser)
    parsed = parser.parse_args(args)
    settings: dict[str, object] = {}
    for name, value in map(_setting, parsed.settings):
        if name in settings:
            raise ConfigError(name, value, f"is given twice, and was {settings[name]!r} before; give one value")
        settings[name] = value
    change_settings(parsed.run, settings, trust=parsed.trust)
    folder = _running(parsed.run)
    print(f"asked for {', '.join(parsed.settings)}; the run says when that is done (runnel logs {folder.path})")
    return 0


def _setting(word: str) -> tuple[str, object]:
    """A name and a value: a number, true, false, none or a text.

    >>> _setting("ppo.lr=1e-4"), _setting("ppo.value_clip=none"), _setting("ppo.lr=linear(1e-3, 0)")
    (('ppo.lr', 0.0001), ('ppo.value_clip', None), ('ppo.lr', 'linear(1e-3, 0)'))
    """
    name, equals, text = word.partition("=")
    if not (name and equals and text):
        raise ConfigError("NAME=VALUE", word, "write a name, =, and a value: ppo.lr=1e-4")
    if text in ("none", "None"):
        return name.replace("-", "_"), None
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    return name.replace("-", "_"), value


def add_new_tasks(args: list[str]) -> int:
    """Add prompts to a run that goes on."""
    from runnel.run.new_tasks import add_tasks  # needs torch, which the other commands here do not

    about = (
        "Add prompts to a run while it goes on; it was started with --new-tasks.capacity. The run notes from which version on."
    )
    parser = make_parser("add-tasks", about)
    parser.add_argument("run", help="the run's folder")
    parser.add_argument("file", help="rows as those of its task: JSON lines, JSON or Parquet")
    add_trust(parser)
    parsed = parser.parse_args(args)
    num = add_tasks(parsed.run, parsed.file, trust=parsed.trust)
    asked = f"asked for new tasks: {num}; the run says when they are there (runnel logs {RunFolder(parsed.run).path})"
    print(asked if num else "the run knows all of these tasks already")
    return 0


def attach(args: list[str]) -> int:
    """Show a run that another process trains, as it goes on."""
    parser = make_parser("attach", "The live view of a run that goes on elsewhere; Ctrl-C leaves it alone.")
    _add_target(parser)
    parsed = parser.parse_args(args)
    if parsed.run.startswith(JOB):
        return _job_logs(parsed.run, parsed.address, follow=True)
    folder = RunFolder.open(parsed.run)
    config = folder.read_config()
    unit = next(u for u in ("steps", "tokens", "updates") if config.get(f"total_{u}"))
    view = LiveView(
        title=own_name(str(folder.read_run_info().get("subject") or folder.path.name)), total=config[f"total_{unit}"], unit=unit
    )
    try:
        for row in rows_of(folder, follow=True):
            view.row(row)
    except KeyboardInterrupt:
        return 0
    finally:
        view.close()
    return 0


# ------------------------------------------------------------------------------------------------------------------ parts
def entrypoint(words: list[str], *, python: str = "python") -> str:
    """The command of a job. It runs on the job's own cluster, unless `words` name another launcher.

    >>> entrypoint(["train", "ppo", "--num-actors", "8"])
    'python -m runnel train ppo --num-actors 8 --launcher ray --cluster.address auto'
    """
    if words[:1] not in (["train"], ["resume"], ["pipeline"]):
        raise ConfigError("command", " ".join(words), "give a command to run: runnel submit train RECIPE [--field value ...]")
    more = [] if any(w.partition("=")[0] == "--launcher" for w in words) else ["--launcher", "ray"]
    more += [] if any(w.startswith("--cluster.address") for w in words) else ["--cluster.address", "auto"]
    return shlex.join([python, "-m", "runnel", *words, *more])


def describe_run(folder: RunFolder) -> list[str]:
    """Path, status, progress and command of a run."""
    newest = _last_row(folder, "update")
    progress = f"{newest.get('progress', 0.0):.0%}" if newest else ""
    return [str(folder.path), _status(folder), progress, str(folder.read_run_info().get("command", ""))]


def _status(folder: RunFolder) -> str:
    """The status of a run (`track/status.py`); for a run of another machine, with the name of that machine."""
    last, said, holder = _last_row(folder), _last_row(folder, "event"), folder.holder()
    end = read_end(last, str(said.get("text", ""))) if last.get("kind") == "end" else {}
    here, away = holder.state == "here", holder.state == "unknown"
    word = status_of(end, held=here, changed=folder.changed(), elsewhere=away)
    return f"{word} on {holder.host}" if away and not end else word


def _goes_on(folder: RunFolder) -> bool:
    """Whether a run is trained on this machine, or was started on another machine and has not ended."""
    state = folder.holder().state
    return state == "here" or (state == "unknown" and _last_row(folder).get("kind") != "end")


def _made(path: Path) -> float:
    """Time at which a run was made, or made again. A missing file counts as the oldest."""
    try:
        return (path / "run.json").lstat().st_mtime
    except OSError:
        return 0.0


def _is_trial(folder: RunFolder) -> bool:
    try:
        return "tuning" in (folder.read_config().get("tags") or [])
    except ConfigError:  # the command that opens the run reports a damaged file
        return False


def rows_of(folder: RunFolder, *, follow: bool) -> Iterator[Row]:
    """Rows of a run's metrics. With `follow`, wait for more rows until the run has ended.

    A run that returns to a checkpoint truncates the file; reading then continues at its new end.
    """
    at = 0
    while True:
        live = _goes_on(folder)  # before the file is read: rows that are written in between must not be missed
        size = _size(folder)
        at = min(at, size)
        data = b""
        if size:
            with open_regular(folder.metrics) as file:
                file.seek(at)
                data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        at += len(whole)
        for line in whole.splitlines():
            try:
                yield json.loads(line)
            except ValueError:
                continue
        if not follow or not live:
            return
        time.sleep(POLL_S)


def _last_row(folder: RunFolder, kind: str = "") -> JsonObject:
    """The last readable row, or the last one of `kind`. Only the end of the file is read."""
    if not (size := _size(folder)):
        return {}
    with open_regular(folder.metrics) as file:
        file.seek(max(0, size - (1 << 16)))
        lines = file.read().splitlines()
    for line in reversed(lines):
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and (not kind or row.get("kind") == kind):
            return row
    return {}


def _size(folder: RunFolder) -> int:
    """Size of the run's metrics in bytes; 0 if there is no such file."""
    try:
        return size_of(folder.metrics)
    except OSError:
        return 0


def _log(folder: RunFolder) -> str:
    """What the processes of a run have printed."""
    try:
        return read_regular(folder.log).decode(errors="replace")
    except FileNotFoundError:
        return ""
    except NotRegularError as error:
        raise ConfigError("run", str(folder.path), str(error)) from error


def _running(path: str) -> RunFolder:
    folder = RunFolder.open(path)
    if not _goes_on(folder):
        raise ConfigError("run", path, "no process is training it; `runnel ps` shows which runs go on")
    if (holder := folder.holder()).state == "unknown":
        told = f"it was started on {holder.host}; the order lies in its folder, and is done if it still runs there"
        print(f"runnel: warning: {told}", file=sys.stderr)
    return folder


def _checked(kind: str, number: int, placement: JsonObject, flag: str, now: int) -> int:
    """`number`, if the run has room for so many workers: for those that it was started with, or for `placement.FLAG`."""
    most = max(placement[flag], now)
    if not 1 <= number <= most:
        fix = f"from 1 to {most}; start the run with --placement.{flag.replace('_', '-')} N to have room for more"
        raise ConfigError(f"number of {kind} workers", number, fix)
    return number


def _add_target(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of a command for a run that may also be named by its job."""
    parser.add_argument("run", help="the run's folder, or the id of a job")
    parser.add_argument("--address", default=ADDRESS, help=f"for a job: the cluster's job server ({ADDRESS})")


def _client(address: str) -> Any:
    try:
        from ray.exceptions import AuthenticationError
        from ray.job_submission import JobSubmissionClient
    except ImportError as error:
        raise ConfigError("--address", address, JOB_CLIENT.format(error)) from error
    try:
        return JobSubmissionClient(address)
    except AuthenticationError as error:
        fix = "the cluster wants its token: set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH to its own"
        raise ConfigError("--address", address, fix) from error
    except (ConnectionError, RuntimeError) as error:
        text = str(error).partition("\n")[0]
        fix = f"no job server answers there ({text}); `ray start --head` starts one, where that Python has runnel[jobs] too"
        if "ray[default]" in text:  # Ray is installed, but not the part that speaks to job servers
            fix = JOB_CLIENT.format(text)
        raise ConfigError("--address", address, fix) from error


def _order_stop(folder: RunFolder, *, wait: bool) -> None:
    folder.add_order({"op": "stop"})
    while wait and folder.is_held():
        time.sleep(POLL_S)


def _stop_job(job: str, address: str, *, wait: bool) -> int:
    """Stop a job by an order in its run's folder, which leaves time for a checkpoint.

    If this machine does not see the folder, or the job has not made it yet, Ray tells the job to stop, and kills it after
    `STOP_WAIT_S`.
    """
    client = _client(address)
    folder = folder_of(client.get_job_logs(job))
    if folder is not None and folder.path.is_dir() and folder.is_held():
        _order_stop(folder, wait=wait)
        return 0
    client.stop_job(job)
    if folder is not None:
        print(f"{folder.path} cannot be seen from here as a run that goes on: Ray was asked to stop the job", file=sys.stderr)
    while wait and not client.get_job_status(job).is_terminal():
        time.sleep(POLL_S)
    return 0


def folder_of(logs: str) -> RunFolder | None:
    """The run folder that a job has printed; for a pipeline, the folder of its last stage.

    >>> folder_of("runnel: warning: ...\\nrun folder: /shared/runs/a\\n").path.name
    'a'
    """
    found = [line.removeprefix(JOB_RUN) for line in logs.splitlines() if line.startswith(JOB_RUN)]
    return RunFolder(Path(found[-1])) if found else None


def _job_logs(job: str, address: str, *, follow: bool) -> int:
    client = _client(address)
    if not follow:
        print(client.get_job_logs(job), end="")
        return 0

    async def tail() -> None:
        async for lines in client.tail_job_logs(job):
            print(lines, end="", flush=True)

    import asyncio

    asyncio.run(tail())
    return 0

"""`runnel submit`, `ps`, `logs`, `stop`, `scale` and `attach`: a run as a job.

A run is named by its folder, and asked for things through it: whoever may write there may ask. A run that was submitted to a
Ray cluster is also a job of Ray's, named by the id that `submit` printed.
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

from runnel.core.errors import ConfigError
from runnel.track.folder import Row, RunFolder
from runnel.track.live import LiveView

ADDRESS = "http://127.0.0.1:8265"
JOB = "raysubmit_"
POLL_S = 0.5


# --------------------------------------------------------------------------------------------------------------- commands
def submit(args: list[str]) -> int:
    """Hand a run to a Ray cluster as a job."""
    parser = _parser("submit", "Run `runnel train ...` as a job of a Ray cluster.")
    parser.add_argument("--address", default=ADDRESS, help=f"the cluster's job server ({ADDRESS})")
    parser.add_argument("--working-dir", default=".", help="folder that is sent along: your environments, recipes, data (.)")
    parser.add_argument("--python", default="python", help="the cluster's Python that has runnel (python)")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="train RECIPE [--field value ...], or resume RUN")
    parsed = parser.parse_args(args)
    words = parsed.command[1:] if parsed.command[:1] == ["--"] else parsed.command
    line = entrypoint(words, python=parsed.python)
    job = _client(parsed.address).submit_job(entrypoint=line, runtime_env={"working_dir": parsed.working_dir})
    print(job)
    print(f"follow it with: runnel attach {job} --address {parsed.address}", file=sys.stderr)
    return 0


def ps(args: list[str]) -> int:
    """List runs, and the jobs of a cluster."""
    parser = _parser("ps", "Runs below a folder, newest last: what they do, how far they are.")
    parser.add_argument("folder", nargs="?", default="runs", type=Path, help="folder of runs (runs)")
    parser.add_argument("--address", default="", help="also list the jobs of the Ray cluster with this job server")
    parsed = parser.parse_args(args)
    rows = [
        describe_run(RunFolder(p.parent)) for p in sorted(parsed.folder.glob("*/run.json"), key=lambda p: p.stat().st_mtime)
    ]
    if parsed.address:
        rows += [[j.submission_id or "", j.status, "", j.entrypoint] for j in _client(parsed.address).list_jobs()]
    if not rows:
        print(f"no runs below {parsed.folder}")
        return 0
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    for row in rows:
        print("  ".join([*(text.ljust(width) for text, width in zip(row, widths, strict=False)), row[3]]))
    return 0


def logs(args: list[str]) -> int:
    """Print what a run's processes have printed."""
    parser = _parser("logs", "What the processes of a run have printed, and what the run has told.")
    _add_target(parser)
    parser.add_argument("--follow", "-f", action="store_true", help="go on until the run ends")
    parsed = parser.parse_args(args)
    if parsed.run.startswith(JOB):
        return _job_logs(parsed.run, parsed.address, follow=parsed.follow)
    folder = RunFolder.open(parsed.run)
    if folder.log.exists():
        print(folder.log.read_text(errors="replace"), end="")
    for row in rows_of(folder, follow=parsed.follow):
        if row.get("kind") == "event":
            print(f"{row.get('level', 'info')}: {row.get('text', '')}")
    return 0


def stop(args: list[str]) -> int:
    """End a run cleanly, with a checkpoint."""
    parser = _parser("stop", "End a run at its next version, with a checkpoint; `runnel resume` goes on from there.")
    _add_target(parser)
    parser.add_argument("--wait", action="store_true", help="return when it has ended")
    parsed = parser.parse_args(args)
    if parsed.run.startswith(JOB):
        _client(parsed.address).stop_job(parsed.run)
        return 0
    folder = _running(parsed.run)
    folder.add_order({"op": "stop"})
    while parsed.wait and folder.is_held():
        time.sleep(POLL_S)
    return 0


def scale(args: list[str]) -> int:
    """Change the number of actors or policy workers of a run that goes on."""
    parser = _parser("scale", "Change how many actors or policy workers a run has, while it goes on.")
    parser.add_argument("run", help="the run's folder")
    parser.add_argument("--actors", type=int, help="actors from now on")
    parser.add_argument("--policy-workers", type=int, help="policy workers from now on")
    parsed = parser.parse_args(args)
    folder = _running(parsed.run)
    config = folder.read_config()
    numbers: dict[str, int] = {}
    for kind, flag, number, least in (
        ("actor", "max_actors", parsed.actors, config["num_actors"]),
        ("policy", "max_policy_workers", parsed.policy_workers, config["placement"]["policy_workers"]),
    ):
        if number is not None:
            numbers[kind] = _checked(kind, number, max(config["placement"][flag], least), flag)
    if not numbers:
        raise ConfigError("--actors", None, "say how many: --actors N or --policy-workers N")
    folder.add_order({"op": "scale", "numbers": numbers})
    return 0


def attach(args: list[str]) -> int:
    """Show a run that another process trains, as it goes on."""
    parser = _parser("attach", "The live view of a run that goes on elsewhere; Ctrl-C leaves it alone.")
    _add_target(parser)
    parsed = parser.parse_args(args)
    if parsed.run.startswith(JOB):
        return _job_logs(parsed.run, parsed.address, follow=True)
    folder = RunFolder.open(parsed.run)
    config = folder.read_config()
    unit = next(u for u in ("steps", "tokens", "updates") if config.get(f"total_{u}"))
    view = LiveView(
        title=str(folder.read_run_info().get("subject") or folder.path.name), total=config[f"total_{unit}"], unit=unit
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
    """The command of a job: on the cluster that runs it, unless another launcher is asked for.

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
    last = _last_row(folder)
    status = "running" if folder.is_held() else str(last.get("status", "killed"))
    newest = _last_row(folder, "update")
    progress = f"{newest.get('progress', 0.0):.0%}" if newest else ""
    return [str(folder.path), status, progress, str(folder.read_run_info().get("command", ""))]


def rows_of(folder: RunFolder, *, follow: bool) -> Iterator[Row]:
    """Rows of a run's metrics; `follow` waits for more until the run has ended. A file that is cut back (the run went back to a
    checkpoint) is read on from there."""
    at = 0
    while True:
        live = folder.is_held()
        size = folder.metrics.stat().st_size if folder.metrics.exists() else 0
        at = min(at, size)
        data = b""
        if size:
            with folder.metrics.open("rb") as file:
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


def _last_row(folder: RunFolder, kind: str = "") -> dict[str, Any]:
    """The last readable row, of a kind if one is named; only the end of the file is read."""
    if not folder.metrics.exists():
        return {}
    with folder.metrics.open("rb") as file:
        file.seek(max(0, folder.metrics.stat().st_size - (1 << 16)))
        lines = file.read().splitlines()
    for line in reversed(lines):
        try:
            row: dict[str, Any] = json.loads(line)
        except ValueError:
            continue
        if not kind or row.get("kind") == kind:
            return row
    return {}


def _running(path: str) -> RunFolder:
    folder = RunFolder.open(path)
    if not folder.is_held():
        raise ConfigError("run", path, "no process is training it; `runnel ps` shows which runs go on")
    return folder


def _checked(kind: str, number: int, most: int, flag: str) -> int:
    if not 1 <= number <= most:
        fix = f"from 1 to {most}; start the run with --placement.{flag.replace('_', '-')} N to have room for more"
        raise ConfigError(f"number of {kind} workers", number, fix)
    return number


def _parser(name: str, about: str) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(prog=f"runnel {name}", description=about)


def _add_target(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", help="the run's folder, or the id of a job")
    parser.add_argument("--address", default=ADDRESS, help=f"for a job: the cluster's job server ({ADDRESS})")


def _client(address: str) -> Any:
    try:
        from ray.exceptions import AuthenticationError
        from ray.job_submission import JobSubmissionClient
    except ImportError as error:
        raise ConfigError("--address", address, f"jobs need Ray's job client: pip install 'runnel[jobs]' ({error})") from error
    try:
        return JobSubmissionClient(address)
    except AuthenticationError as error:
        fix = "the cluster wants its token: set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH to its own"
        raise ConfigError("--address", address, fix) from error
    except (ConnectionError, RuntimeError) as error:
        text = str(error).partition("\n")[0]
        raise ConfigError(
            "--address", address, f"no job server answers there ({text}); `ray start --head` starts one"
        ) from error


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

"""Runs a plan of jobs side by side, for so many seconds, and packs what they found.

python3 .device_jobs/run_jobs.py PLAN SECONDS      (from the repository root; OUT is the folder for results)
"""

import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

BEGIN = time.monotonic()
HERE, ROOT = Path(__file__).resolve().parent, Path.cwd()
OUT = Path(os.environ.get("OUT", "/tmp/out"))
SITE, LOGS = Path("/tmp/teams_site"), Path("/tmp/teams_logs")
NEEDED = ("numpy", "scipy", "torch", "safetensors", "gymnasium", "pettingzoo", "mpe2", "lbforaging", "pyspiel", "rich.console")


def say(*text):
    print(f"[{time.monotonic() - BEGIN:6.1f}]", *text, flush=True)


def prepare():
    shutil.rmtree(LOGS, ignore_errors=True)
    LOGS.mkdir(parents=True)
    OUT.mkdir(parents=True, exist_ok=True)
    if not (SITE / "site").is_dir():
        with tarfile.open(HERE / "site.tar.xz") as archive:
            archive.extractall(SITE)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT), str(SITE / "site")])
    os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    sys.path[:0] = [str(ROOT / "src"), str(ROOT), str(SITE / "site")]
    missing = []
    for name in NEEDED:
        try:
            module = importlib.import_module(name)
            say("has", name, getattr(module, "__version__", ""))
        except Exception as error:
            missing.append(name)
            say("MISSING", name, repr(error))
    check = "import torch, runnel as rl; from benchmarks.learning import teams, boards; print(torch.cuda.is_available(), torch.__version__)"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True)
    say("runnel:", done.stdout.strip(), done.stderr.strip()[-1500:])
    for git in (["config", "--global", "--add", "safe.directory", str(ROOT)], ["rev-parse", "HEAD"]):
        done = subprocess.run(["git", *git], capture_output=True, text=True)
        say("git", git[0], done.stdout.strip(), done.stderr.strip()[-200:])
    return missing


def run(plan, seconds):
    """Chains of commands, one chain beside the other."""
    chains = {name: list(commands) for name, commands in plan.items()}
    going, failed = {}, []
    while chains or going:
        left = seconds - (time.monotonic() - BEGIN)
        for name in list(chains):
            if name in going:
                continue
            if not chains[name] or left < 20:
                del chains[name]
                continue
            command = chains[name].pop(0)
            log = open(LOGS / f"{name}.log", "a")
            print(f"$ {command}", file=log, flush=True)
            going[name] = (subprocess.Popen(["bash", "-c", command.replace("python ", f"exec {sys.executable} ", 1) if command.startswith("python ") else command.replace("python ", f"{sys.executable} ", 1)], stdout=log, stderr=log, start_new_session=True), time.monotonic())
            say("start", name, ":", command[:150])
        for name, (process, since) in list(going.items()):
            if process.poll() is not None:
                say("end", name, "rc", process.returncode, f"{time.monotonic() - since:.0f} s")
                if process.returncode:
                    failed.append(name)
                del going[name]
        if left < 0:
            for name, (process, _) in going.items():
                say("too late:", name)
                os.killpg(process.pid, signal.SIGKILL)
            break
        time.sleep(0.5)
    return failed


def pack(plan):
    """Results that are new, logs, and the newest checkpoints of runs in runs/boards."""
    with tarfile.open(OUT / "results.tar.xz", "w:xz") as archive:
        archive.add(LOGS, "logs")
        for folder in ("teams", "boards"):
            for path in sorted((ROOT / "benchmarks/results/learning" / folder).glob("*.json")):
                if path.stat().st_mtime > STARTED:
                    archive.add(path, str(path.relative_to(ROOT)))
        for path in sorted(Path("/tmp/c4").glob("*.json")):
            archive.add(path, f"c4/{path.name}")
    say("packed", (OUT / "results.tar.xz").stat().st_size)
    num = 0
    for run_folder in sorted((ROOT / "runs/boards").glob("connect-four-*")):
        target = OUT / f"{run_folder.name}.tar"
        with tarfile.open(target, "w") as archive:
            archive.add(run_folder, run_folder.name, filter=lambda x: None if x.name.endswith((".html", "samples.jsonl")) else x)
        say("packed", target.name, target.stat().st_size)
        if target.stat().st_size > 16 * 2**20 or (num := num + 1) > 6:
            target.unlink()
            say("left out:", target.name)


STARTED = time.time()
plan = json.loads((HERE / sys.argv[1]).read_text())
missing = prepare()
failed = run(plan, float(sys.argv[2]))
for name in plan:
    path = LOGS / f"{name}.log"
    text = path.read_text(errors="replace").strip().splitlines() if path.is_file() else ["did not start"]
    for line in [x for x in text if x.startswith(("{", "["))][-3:] + (text[-6:] if name in failed else []):
        say(name, ":", line[:400])
pack(plan)
say("missing", missing, "failed", failed)

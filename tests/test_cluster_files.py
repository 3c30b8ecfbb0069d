"""The files that start a cluster: they parse, and the commands in them are ones that runnel understands."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from runnel.cli.arguments import parse
from runnel.cli.train import Options
from runnel.core.errors import ConfigError
from runnel.run import registry
from runnel.run.needs import Need, parse_line

FOLDER = Path(__file__).parent.parent / "examples" / "cluster"
SCRIPTS = ("bare.sh", "slurm.sbatch")


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_are_shell(name: str) -> None:
    done = subprocess.run(["bash", "-n", str(FOLDER / name)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    text = (FOLDER / name).read_text()
    assert "set -euo pipefail" in text
    assert "RAY_AUTH_MODE=token" in text, "an example must not leave a cluster open"


def test_slurms_signal_reaches_the_run_and_its_checkpoint_is_waited_for(tmp_path: Path) -> None:
    """With stand-ins for what the script calls: a run that takes a moment to end, as one does that saves itself."""
    run = """trap 'sleep 0.3; echo saved >> "$LOG"; exit 130' TERM; echo started >> "$LOG"; while :; do sleep 0.05; done"""
    stand_ins = {
        "runnel": run,
        "scontrol": "echo a",
        "srun": "case $* in *hostname*) echo 10.0.0.1;; esac",
        "openssl": "echo x",
    }
    for name, text in {**stand_ins, "activate": ""}.items():
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    script = (FOLDER / "slurm.sbatch").read_text().replace("sleep 15", "true")
    assert "#SBATCH --signal=B:TERM@" in script, "without B: it goes to all but this script"
    log = tmp_path / "log"
    more = {
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "ENV": str(tmp_path),
        "LOG": str(log),
        "RUN": str(tmp_path / "r"),
    }
    more |= {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "a", "SLURM_CPUS_PER_TASK": "1"}
    job = subprocess.Popen(["bash", "-c", script], env={**os.environ, **more})
    deadline = time.monotonic() + 30
    while not log.exists():
        assert job.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    job.terminate()
    assert job.wait(timeout=30) == 130
    assert log.read_text().split() == ["started", "saved"]


def kuberay() -> dict[str, Any]:
    yaml = pytest.importorskip("yaml")
    found: dict[str, Any] = yaml.safe_load((FOLDER / "kuberay.yaml").read_text())
    return found


def test_the_ray_job_is_whole() -> None:
    job = kuberay()
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    spec = job["spec"]["rayClusterSpec"]
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        pod = group["template"]["spec"]
        volumes = {v["name"] for v in pod["volumes"]}
        for container in pod["containers"]:
            assert {m["name"] for m in container["volumeMounts"]} <= volumes
            assert container["resources"]["requests"] == container["resources"]["limits"]
    for workers in spec["workerGroupSpecs"]:
        assert workers["minReplicas"] <= workers["replicas"] <= workers["maxReplicas"]


def commands() -> list[list[str]]:
    """Every `runnel train` or `runnel resume` in the files, as words."""
    texts = [(FOLDER / name).read_text().replace("\\\n", " ") for name in SCRIPTS] + [kuberay()["spec"]["entrypoint"]]
    lines = [m[0] for text in texts for m in re.finditer(r"runnel\"? (?:train|resume) [^\n]*", text)]
    return [shlex.split(line.replace('runnel"', "runnel")) for line in lines]


def test_the_commands_are_understood(tmp_path: Path) -> None:
    found = [words for words in commands() if words[1] == "train"]
    assert len(found) == 3
    for words in found:
        recipe = registry.load_recipe(words[2])
        flags = [re.sub(r"^'(.*)'$", r"\1", w) for w in words[3:]]
        _, config = parse(Options, recipe.Config(), flags, prog="runnel train", about="")
        config.check()
        assert config.launcher == "ray"
        for line in config.cluster.place:
            parse_line(line, Need())
    with pytest.raises(ConfigError):
        parse_line("actor-*: a core", Need())

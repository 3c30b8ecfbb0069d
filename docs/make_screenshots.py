"""The pictures of the board in README and docs: real runs are trained, the board is opened, and Chromium takes them.

python docs/make_screenshots.py [--runs FOLDER]     (about three minutes on two cores; FOLDER keeps the runs for another time)
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ASSETS = Path(__file__).parent / "assets"
RUNNEL = [sys.executable, "-m", "runnel"]
CARTPOLE = "train ppo --env CartPole-v1 --total-steps 60000 --eval.every 10 --eval.episodes 20 --record.videos 1 --tags demo"
LINES = [
    *(
        f"{CARTPOLE} --ppo.lr {lr} --seed {seed} --name ppo-lr{lr}-seed{seed}"
        for lr in ("1e-3", "3e-4", "1e-4")
        for seed in (1, 2, 3)
    ),
    "train reverse --name reverse --tags words",
    "train appo --env CartPole-v1 --total-steps 100000 --launcher local --num-actors 2 --placement.policy-workers 1 "
    "--name appo-local",
]
STUDY = (
    "tune ppo --env CartPole-v1 --total-steps 4000 --trials 16 --workers 2 --search ppo.lr=log(1e-5,1e-1) ppo.gamma=0.9..0.999"
)
SHOTS = [
    ("board-runs", "", (1360, 860), "light", []),
    ("board-streams", "#/run/appo-local/streams", (1360, 860), "dark", []),
    ("board-episodes", "#/run/ppo-lr1e-3-seed1/episodes", (1360, 760), "light", []),
    (
        "board-conversations",
        "#/run/reverse/conversations",
        (1360, 760),
        "light",
        [".talk:nth-child(31)", "text=log-probability"],
    ),
    ("board-study", "#/study/study", (1360, 760), "light", []),
    ("board-phone", "", (390, 780), "dark", []),
]


def main() -> None:
    """Train what is missing, then take every picture."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=Path, default=Path(tempfile.gettempdir()) / "runnel-screenshots")
    runs = parser.parse_args().runs
    for line in LINES:
        words = line.split()
        if not (runs / words[words.index("--name") + 1]).exists():
            subprocess.run([*RUNNEL, *words, "--out", str(runs)], check=True)
    if not (runs / "study").exists():
        subprocess.run([*RUNNEL, *STUDY.split(), "--out", str(runs / "study")], check=True)
    with board(runs) as address:
        take(address)


@contextmanager
def board(runs: Path) -> Iterator[str]:
    """The board over a folder, on any free port."""
    process = subprocess.Popen([*RUNNEL, "board", str(runs), "--port", "0"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield next(line for line in process.stdout if line.startswith("open ")).split()[1]
    finally:
        process.terminate()
        process.wait()


def take(address: str) -> None:
    """Open each view, click what it names, and write the picture."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"])
        for name, view, (width, height), scheme, clicks in SHOTS:
            page = chromium.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
            page.goto(address + view)
            page.wait_for_timeout(3000)
            for target in clicks:
                page.click(target)
                page.wait_for_timeout(800)
            page.screenshot(path=ASSETS / f"{name}.png")
            page.close()
            print(ASSETS / f"{name}.png")
        chromium.close()


if __name__ == "__main__":
    main()

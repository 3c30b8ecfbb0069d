"""Runs on a cluster of three nodes, while its processes, agents and nodes are lost at random: what came back, and how soon.

python -m benchmarks.faults.chaos --minutes 30 --seed 0
python -m benchmarks.faults.chaos --quick --only ppo        # does it run at all? a minute

The nodes are on loopback addresses of this machine. Whatever happens, each run must end with every version trained once, with
accounts that add up, and with nothing left behind; the exit code says whether that was so. A recovery lasts from the loss as
the supervisor saw it to the moment at which who was lost (or the whole run, from its checkpoint) is at work again.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

import runnel as rl
from benchmarks import machine, results, venvs
from benchmarks.harness import RESULTS

sys.path.insert(0, str(venvs.ROOT / "tests" / "system"))
NAME = "faults/chaos"
NUM_NODES = 3
BETWEEN = 5
"""Updates at least between two faults."""
Row = dict[str, Any]

PLAIN: Row = {
    "launcher": "ray",
    "track": (),
    "eval": {"episodes": 0},
    "checkpoint": {"every": 10},
    "name": "run",
    "total_updates": 1_000_000,
}
PLACED: Row = {"policy_workers": 1, "max_restarts": 1000, "stage_timeout_s": 20.0}
SPREAD: Row = {"place": ("actor-*: 1 core, spread",)}
SMALL: Row = {"env": "CartPole-v1", "num_actors": 2, "num_envs": 2, "num_steps": 16, "vector": {"backend": "serial"}}
LM: Row = {"layers": 2, "width": 32, "heads": 2, "kv_heads": 2, "inner": 64}
CASES: dict[str, tuple[str, Row]] = {
    "ppo": ("ppo", {**SMALL, "placement": PLACED, "cluster": SPREAD}),
    "appo": ("appo", {**SMALL, "placement": {**PLACED, "policy_workers": 0}, "cluster": SPREAD}),
    "grpo": ("grpo", {"lm": LM, "num_prompts": 4, "group_size": 4, "placement": PLACED, "cluster": SPREAD}),
}


class Chaos:
    """Does harm at random moments; it is the run's `on_update`, and ends the run when the time is over."""

    def __init__(self, nodes: Any, folder: Path, *, seconds: float, every_s: float, rng: random.Random) -> None:
        self._nodes, self._folder, self._rng, self._every_s = nodes, folder, rng, every_s
        self._start = time.monotonic()
        self._end, self._next = self._start + seconds, self._start + every_s
        self._ballast: list[Any] = []
        self._told, self._offset, self._last = set[str](), 0, b""
        self._updates = 0
        self.done: list[str] = []
        """What was done."""
        self.back: list[tuple[str, float]] = []
        """Recoveries: the last fault before each, and the seconds that it took."""
        self._faults: dict[str, Callable[[], None]] = {
            "an actor killed": lambda: self._signal("actor-", signal.SIGKILL),
            "an actor frozen": lambda: self._signal("actor-", signal.SIGSTOP),
            "a policy worker killed": lambda: self._signal("policy-", signal.SIGKILL),
            "the trainer killed": lambda: self._signal("trainer", signal.SIGKILL),
            "the trainer killed, its checkpoint damaged": self._damage,
            "an agent killed": self._kill_agent,
            "a node lost": self._lose_node,
            "the object store filled": self._fill,
        }

    def __call__(self, row: Mapping[str, Any]) -> bool:
        now = time.monotonic()
        self.listen()
        if now > self._end:
            return False
        self._updates += 1
        if now > self._next and self._updates >= BETWEEN:
            self._ballast.clear()
            name = self._rng.choice(sorted(self._faults))
            try:
                self._faults[name]()
            except (LookupError, ValueError):  # what it would hit is not there just now
                return True
            self.done.append(name)
            self._updates = 0
            print(f"  version {row['version']}: {name}", flush=True)
            self._next = now + self._every_s * self._rng.uniform(0.7, 1.3)
        return True

    def listen(self) -> None:
        """Note what the run has told since the last time. Its file is cut back when it goes on from a checkpoint."""
        with (self._folder / "metrics.jsonl").open("rb") as file:
            file.seek(self._offset - len(self._last))
            if file.read(len(self._last)) != self._last:
                file.seek(0)
            lines = [line for line in file if line.endswith(b"\n")]
            self._offset = file.tell() if lines else self._offset
            self._last = lines[-1] if lines else self._last
        for line in (line.decode() for line in lines):
            back = re.search(r"(?:the run|worker '\S+') is back after (\d+\.\d) s", line)
            if back and self.done and line not in self._told:
                self._told.add(line)
                self.back.append((self.done[-1], float(back[1])))

    def _signal(self, kind: str, how: signal.Signals) -> None:
        from ray_cluster import our_actors

        found = sorted((g, place["pid"]) for g, place in our_actors().items() if g.startswith(kind))
        os.kill(self._rng.choice(found)[1], how)

    def _damage(self) -> None:
        """If there is one before it to go back to."""
        _, newest = sorted((self._folder / "checkpoints").glob("0*"))[-2:]
        path = max((p for p in newest.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(bytes(data))
        self._signal("trainer", signal.SIGKILL)

    def _kill_agent(self) -> None:
        import ray
        from ray_cluster import agent_of, our_actors

        ray.kill(agent_of(self._rng.choice(sorted({place["node"] for place in our_actors().values()}))))

    def _lose_node(self) -> None:
        """Another one takes its place."""
        from ray_cluster import our_actors

        used = {place["node"] for place in our_actors().values()}
        self._nodes.remove(self._rng.choice(sorted(used & self._nodes.removable())))
        self._nodes.add()

    def _fill(self) -> None:
        """Until the next fault."""
        import ray
        from ray_cluster import STORE_BYTES

        self._ballast = [ray.put(np.ones(STORE_BYTES // 5, np.uint8)) for _ in range(6)]


def run_case(name: str, nodes: Any, args: argparse.Namespace, rng: random.Random) -> Row:
    """One run under faults; what it survived, and what is wrong with it."""
    from ray_cluster import nothing_is_left, wait_until

    recipe, settings = CASES[name]
    with tempfile.TemporaryDirectory(prefix="runnel-chaos-") as out:
        chaos = Chaos(nodes, Path(out) / "run", seconds=args.minutes * 60 / len(args.only), every_s=args.every, rng=rng)
        try:
            run = rl.train(recipe, out=out, on_update=chaos, seed=args.seed, **{**PLAIN, **settings})
        except rl.RunnelError as error:
            return {
                "name": name,
                "faults": chaos.done,
                "back": chaos.back,
                "version": 0,
                "wrong": [f"it ended with {error}"[:500]],
            }
        wrong = problems(run)
        chaos.listen()
    if not wait_until(nothing_is_left):
        wrong.append("something of the run is left")
    return {"name": name, "faults": chaos.done, "back": chaos.back, "version": run.version, "wrong": wrong}


def problems(run: rl.Run) -> list[str]:
    """What a run that was harmed must keep, and did not."""
    found, rows = [], run.rows()
    if [row["version"] for row in rows] != list(range(1, run.version + 1)):
        found.append("a version is missing, or was trained twice")
    used = [i for row in rows for stream, ids in row["sample_ids"].items() for i in ((stream, i) for i in ids)]
    if len(used) != len(set(used)):
        found.append("a sample was trained on twice")
    for stream, account in rows[-1]["streams"].items():
        gone = sum(account["cancelled"].values()) + sum(account["dropped"].values())
        if account["dispatched"] != account["consumed"] + gone + account["in_flight"]:
            found.append(f"the account of {stream} does not add up: {account}")
    return found


def markdown(result: Row) -> str:
    seconds, count = defaultdict(list), defaultdict(int)
    for row in result["rows"]:
        for fault in row["faults"]:
            count[fault] += 1
        for fault, took in row["back"]:
            seconds[fault].append(took)
    cells = []
    for fault in sorted(count):
        took = seconds[fault]
        middle, most = (f"{statistics.median(took):.1f}", f"{max(took):.1f}") if took else ("-", "-")
        cells.append([fault, str(count[fault]), str(len(took)), middle, most])
    header = ["fault", "times", "recoveries", "median s", "longest s"]
    m, wrong = result["machine"], [f"- {r['name']}: {w}" for r in result["rows"] for w in r["wrong"]]
    runs = ", ".join(f"{r['name']} {r['version']} updates" for r in result["rows"])
    lines = ["# Faults and recoveries", f"{result['made']}; {NUM_NODES} nodes on {m['cores']} cores, {m['cpu']}; {runs}.", ""]
    return "\n".join([*lines, results.table(header, cells), "", *(wrong or ["All versions once, all accounts add up."])]) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0, help="length in all (30)")
    parser.add_argument("--every", type=float, default=20.0, help="seconds between faults, give or take a third (20)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--drop", type=float, default=0.0, help="share of the messages between nodes that are lost (0)")
    parser.add_argument("--only", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--quick", action="store_true", help="a minute, a fault every 8 s")
    parser.add_argument("--out", default=str(RESULTS / NAME), help="folder of the result")
    args = parser.parse_args(argv)
    if args.quick:
        args.minutes, args.every = 1.0, 8.0
    from ray_cluster import Nodes

    os.environ["RUNNEL_MESSAGE_FAULTS"] = f"drop={args.drop}" if args.drop else ""
    nodes, rng, rows = Nodes(NUM_NODES), random.Random(args.seed), []
    try:
        for name in args.only:
            print(name, flush=True)
            rows.append(run_case(name, nodes, args, rng))
    finally:
        nodes.close()
    made = datetime.now().astimezone().isoformat(timespec="seconds")
    result: Row = {"made": made, "machine": machine.facts(), "code": machine.commit(venvs.ROOT), "rows": rows}
    folder = Path(args.out)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "result.json").write_text(json.dumps({**result, "settings": vars(args)}, indent=1) + "\n", encoding="utf-8")
    (folder / "table.md").write_text(markdown(result), encoding="utf-8")
    print(markdown(result))
    return int(any(row["wrong"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())

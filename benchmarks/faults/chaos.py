"""Runs on a cluster of three nodes, while its processes, agents and nodes are lost at random: what came back, and how soon.

python -m benchmarks.faults.chaos --minutes 18 --seed 0
python -m benchmarks.faults.chaos --quick --only ppo        # does it run at all? two minutes
python -m benchmarks.faults.chaos --each 2 --calm 0 --delay 0.7 --seed 0 1 2 --out benchmarks/results/faults/late

The nodes are on loopback addresses of this machine. A part of the messages between them is lost all the time (`--drop`), and
each is late by up to so long (`--delay`). Faults come in a random order, each kind once before any comes again, and each only
when the one before is over: all who were lost are back, and the next update is done. Seconds are counted from the harm itself,
so they hold the time until it was noticed. Stores that are filled stop nobody: the seconds are those to the next update.

Whatever happens, each run must end with every version trained once, with accounts that add up, with nothing left behind, and
above its threshold (`THRESHOLDS`). For that it has some minutes without faults at its end (`--calm`), as the last fault may
have taken it back to version 0; without them (`--calm 0`) thresholds do not count. The folder that a run leaves is audited
from its raw files (`audit.py`): rows, accounts, digests; every checkpoint that is left is restored on one machine, and the
newest one on the cluster too, with messages as late as before. What fails is kept beside the result. The exit code says
whether all was so.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import re
import shutil
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import runnel as rl
from benchmarks import machine, results, venvs
from benchmarks.faults.audit import audit, finished, restore
from benchmarks.harness import RESULTS
from runnel.run.ledger import Ledger

sys.path.insert(0, str(venvs.ROOT / "tests" / "system"))
NAME = "faults/chaos"
NUM_NODES = 3
BETWEEN = 5
"""Updates at least between two faults; two where messages are late."""
LATE_S = 0.1
"""Messages that are later than this are what an update takes."""
HERE: Row = {"launcher": "local", "cluster": {"place": ()}, "trust": True}
"""How checkpoints are restored without a cluster. The task's file is our own."""
Row = dict[str, Any]

PLAIN: Row = {
    "launcher": "ray",
    "track": (),
    "eval": {"episodes": 0},
    "checkpoint": {"every": 5},
    "name": "run",
    "total_updates": 1_000_000,
}
PLACED: Row = {"policy_workers": 1, "max_restarts": 1000, "stage_timeout_s": 20.0, "threads": 1}
SPREAD: Row = {"place": ("actor-*: 1 core, spread",)}
CARTPOLE: Row = {"env": "CartPole-v1", "num_actors": 2, "vector": {"backend": "serial"}, "compiled": "off"}
TASK = f"{venvs.ROOT / 'tests' / 'learning' / 'digits_task.py'}:make_task"
LM: Row = {"layers": 1, "width": 32, "heads": 2, "kv_heads": 2, "inner": 64}
CASES: dict[str, tuple[str, Row]] = {
    "ppo": ("ppo", {**CARTPOLE, "num_envs": 16, "num_steps": 32, "placement": PLACED, "cluster": SPREAD}),
    # segments of more than 100 KB travel through Ray's object store
    "appo": (
        "appo",
        {**CARTPOLE, "num_envs": 64, "num_steps": 32, "placement": {**PLACED, "policy_workers": 0}, "cluster": SPREAD},
    ),
    "grpo": (
        "grpo",
        {
            "task": TASK,
            "lm": LM,
            "num_prompts": 8,
            "group_size": 8,
            "num_actors": 2,
            "learner": {"lr": 3e-3, "warmup_updates": 5},
            "placement": PLACED,
            "cluster": SPREAD,
        },
    ),
}
ON_CLUSTER: Row = {"launcher": "ray", "trust": True}
LATE: dict[str, Row] = {
    # each step asks a policy worker elsewhere: 32 of them would take half a minute
    "ppo": {"num_envs": 64, "num_steps": 4, "checkpoint": {"every": 2}},
    # an actor beside the trainer keeps it going, so that the others fall far behind
    "appo": {"num_actors": 3, "num_envs": 16, "num_steps": 8, "checkpoint": {"every": 10}},
}
"""What is changed where messages are late."""
THRESHOLDS = {"ppo": 195.0, "appo": 195.0, "grpo": 0.5}
"""Mean return of the last 100 episodes (completions) in training; by chance it is about 20, 20 and 0.04."""


class NotYet(Exception):
    """A fault whose time has not come."""


class Chaos:
    """Does harm at random moments; it is the run's `on_update`, and ends the run when the time is over and all is well."""

    def __init__(
        self, nodes: Any, folder: Path, args: argparse.Namespace, *, threshold: float, rng: random.Random, every: int
    ) -> None:
        self._nodes, self._folder, self._rng, self._every_s = nodes, folder, rng, args.every
        self._between = 2 if args.delay > LATE_S else BETWEEN
        self._settled = 2 * every + 2
        """Updates at least after the last fault: it may have taken all checkpoints, and some are to be looked at."""
        self._threshold, self._calm_s, seconds = threshold, args.calm * 60, args.each * 60
        self._start = time.monotonic()
        self._end, self._next = self._start + seconds, self._start
        self._ballast: list[Any] = []
        self._updates = 0
        self._left: list[str] = []
        self._open = ""
        self._since = 0.0
        self._noticed, self._missing = False, set[str]()
        self.pids: set[int] = set()
        """Processes that the run has had."""
        self.done: list[tuple[str, float | None]] = []
        """Faults, and the seconds until all was well again."""
        self.told: list[str] = []
        """What the run said of losses and recoveries."""
        self._faults: dict[str, Callable[[], None]] = {
            "an actor killed": lambda: self._signal("actor-", signal.SIGKILL),
            "an actor frozen (SIGSTOP)": lambda: self._signal("actor-", signal.SIGSTOP),
            "a policy worker killed": lambda: self._signal("policy-", signal.SIGKILL),
            "the trainer killed": lambda: self._signal("trainer", signal.SIGKILL),
            "the trainer killed, its checkpoint damaged": lambda: self._damage(newest_only=True),
            "the trainer killed, all checkpoints damaged": lambda: self._damage(newest_only=False),
            "the trainer killed, an actor as the run comes back": self._kill_twice,
            "an agent killed": self._kill_agent,
            "a node lost": self._lose_node,
            "the object stores filled": self._fill,
        }

    # ------------------------------------------------------------------------------------------------------------ the run
    def __call__(self, row: Mapping[str, Any]) -> bool:
        now = time.monotonic()
        self._updates += 1
        if self._open and self._is_over():
            self._close(now)
        if self._open:
            return True
        if now > self._end:
            below = row["metrics"].get("return", 0.0) < self._threshold
            return self._updates < self._settled or (below and now < self._end + self._calm_s)
        if now > self._next and self._updates >= self._between:
            self._harm(row["version"])
        return True

    def hear(self, text: str) -> None:
        """What the run tells of itself."""
        if found := re.match(r"worker '(\S+)' .*; starting it again$", text):
            self._missing.add(found[1])
        elif re.search(r"; going on from version \d+$", text):
            self._missing = {"the run"}
        elif re.match(r"the run is back after", text):
            self._missing.clear()
        elif found := re.match(r"worker '(\S+)' is back after", text):
            self._missing.discard(found[1])
        else:
            return
        self._noticed = True
        self.told.append(text[:300])

    def _harm(self, version: int) -> None:
        from ray_cluster import our_actors

        self._lighten()
        self.pids |= {place["pid"] for place in our_actors().values()}
        if not self._left:
            self._left = self._rng.sample(sorted(self._faults), len(self._faults))
        name = self._left.pop()
        self._open, self._since, self._noticed, self._updates = name, time.monotonic(), False, 0
        try:
            self._faults[name]()
        except LookupError:  # what it would hit is not there
            self._open = ""
            return
        except NotYet:
            self._open = ""
            self._left.insert(0, name)
            return
        print(f"  version {version}: {name}", flush=True)

    def _is_over(self) -> bool:
        return not self._missing and (self._noticed or self._open == "the object stores filled")

    def _close(self, now: float) -> None:
        self.done.append((self._open, now - self._since))
        print(f"    all is well after {now - self._since:.1f} s", flush=True)
        self._open, self._updates = "", 0
        self._next = now + self._every_s * self._rng.uniform(0.7, 1.3)

    def give_up(self) -> None:
        """The run has ended."""
        self._lighten()
        if self._open:
            self.done.append((self._open, None))

    # ------------------------------------------------------------------------------------------------------------- faults
    def _signal(self, kind: str, how: signal.Signals) -> None:
        from ray_cluster import our_actors

        found = sorted((g, place["pid"]) for g, place in our_actors().items() if g.startswith(kind))
        os.kill(self._rng.choice(found)[1], how)

    def _damage(self, *, newest_only: bool) -> None:
        found = sorted((self._folder / "checkpoints").glob("0*"))
        if len(found) < 2:
            raise NotYet("there is none before it to go back to")
        for checkpoint in found[-1:] if newest_only else found:
            path = max((p for p in checkpoint.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 1
            path.write_bytes(bytes(data))
        self._signal("trainer", signal.SIGKILL)

    def _kill_twice(self) -> None:
        """The second while the run is being restored, or soon after."""
        self._signal("trainer", signal.SIGKILL)
        threading.Thread(target=self._kill_later, args=(self._rng.uniform(3.0, 12.0),), daemon=True).start()

    def _kill_later(self, seconds: float) -> None:
        time.sleep(seconds)
        with suppress(LookupError, ProcessLookupError):
            self._signal("actor-", signal.SIGKILL)

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
        """Of all nodes, until the next fault."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
        from ray_cluster import STORE_BYTES

        for node in [n["NodeID"] for n in ray.nodes() if n["Alive"]]:
            here = NodeAffinitySchedulingStrategy(node_id=node, soft=False)
            self._ballast.append(ray.remote(Ballast).options(num_cpus=0, scheduling_strategy=here).remote())
        ray.get([ballast.fill.remote(STORE_BYTES) for ballast in self._ballast], timeout=60)

    def _lighten(self) -> None:
        import ray

        for ballast in self._ballast:
            ray.kill(ballast)
        self._ballast.clear()


class Ballast:
    """Fills the object store of its node, and keeps it full while it lives."""

    def fill(self, num_bytes: int) -> None:
        import ray

        self.held = [ray.put(np.ones(num_bytes // 5, np.uint8)) for _ in range(6)]


# ---------------------------------------------------------------------------------------------------------------- one run
def run_case(name: str, seed: int, nodes: Any, args: argparse.Namespace) -> Row:
    """One run under faults; what it survived, and what is wrong with it."""
    from ray_cluster import is_alive, memory_holders, nothing_is_left, wait_until

    recipe, own = CASES[name]
    settings = {**PLAIN, **own, **(LATE.get(name, {}) if args.delay > LATE_S else {})}
    label = name if len(args.seed) == 1 else f"{name} {seed}"
    found: Row = {"name": label, "threshold": THRESHOLDS[name], "version": 0, "steps": 0, "return": None, "streams": {}}
    with tempfile.TemporaryDirectory(prefix="runnel-chaos-") as out:
        rng = random.Random(f"{seed} {name}")
        every = settings["checkpoint"]["every"]
        chaos = Chaos(nodes, Path(out) / "run", args, threshold=THRESHOLDS[name], rng=rng, every=every)
        start = time.monotonic()
        try:
            with listening(chaos.hear):
                run = rl.train(recipe, out=out, on_update=chaos, seed=seed, **settings)
            found |= judge(run)
        except rl.RunnelError as error:
            found["wrong"] = [f"it ended with {error}"[:500]]
        found["wall_s"] = round(time.monotonic() - start, 1)
        chaos.give_up()
        found["audit"] = look_into(Path(out) / "run")
        found["wrong"] += [f"audit: {text}" for text in found["audit"]["wrong"]]
        if found["wrong"]:
            shutil.copytree(Path(out) / "run", Path(args.out) / f"failed-{name}-{seed}", dirs_exist_ok=True)
    wait_until(lambda: nothing_is_left() and not any(map(is_alive, chaos.pids)))
    found["orphans"] = sum(map(is_alive, chaos.pids))
    found["segments_left"] = len(memory_holders()) + len(list(Path("/dev/shm").glob("*runnel*")))
    if found["orphans"] or found["segments_left"]:
        found["wrong"].append(f"{found['orphans']} processes and {found['segments_left']} pieces of memory are left")
    if args.calm and (found["return"] or 0.0) < found["threshold"]:
        found["wrong"].append(f"its return is {found['return']}, below {found['threshold']}")
    return found | {"faults": chaos.done, "told": chaos.told}


def look_into(run: Path) -> Row:
    """The audit of a run's folder; its newest checkpoint is restored on the cluster as well."""
    started = time.monotonic()
    found = audit(run, **HERE)
    if checkpoints := finished(run):
        found["wrong"] += [f"on the cluster, {text}" for text in restore(run, checkpoints[-1], 2, ON_CLUSTER)]
    took = time.monotonic() - started
    print(f"  audited {len(checkpoints)} checkpoints in {took:.0f} s: {found['wrong'] or 'all is well'}", flush=True)
    return found


@contextmanager
def listening(hear: Callable[[str], None]) -> Iterator[None]:
    """Hear what a run notes: its file is cut back when it goes on from a checkpoint."""
    note = Ledger.note

    def heard(ledger: Ledger, text: str, **more: Any) -> None:
        note(ledger, text, **more)
        hear(text)

    with mock.patch.object(Ledger, "note", heard):
        yield


def judge(run: rl.Run) -> Row:
    """What a run that was harmed has kept, and what it must keep and did not."""
    wrong, rows = [], run.rows()
    versions = [row["version"] for row in rows]
    used = [(stream, i) for row in rows for stream, ids in row["sample_ids"].items() for i in ids]
    twice = len(used) - len(set(used)) + len(versions) - len(set(versions))
    if versions != list(range(1, run.version + 1)):
        wrong.append("a version is missing, or was trained twice")
    if len(used) != len(set(used)):
        wrong.append("a sample was trained on twice")
    streams = {}
    for stream, account in run.rows("end")[-1]["streams"].items():
        gone = {kind: sum(account[kind].values()) for kind in ("dropped", "cancelled")}
        left = account["dispatched"] - account["consumed"] - sum(gone.values()) - account["in_flight"]
        streams[stream] = {k: account[k] for k in ("dispatched", "consumed", "in_flight")} | gone | {"left_over": left}
        if left:
            wrong.append(f"the account of {stream} does not add up: {account}")
    reached = rows[-1]["metrics"].get("return")
    return {"version": run.version, "steps": run.steps or run.tokens, "return": reached, "streams": streams, "wrong": wrong} | {
        "duplicates": twice
    }


# ------------------------------------------------------------------------------------------------------------- the tables
def fault_table(rows: Sequence[Row]) -> str:
    """Seconds from the harm until all is well, by fault: the median, and by run."""
    kinds = sorted({fault for row in rows for fault, _ in row["faults"]})
    cells = []
    for kind in kinds:
        by_run = [[seconds for fault, seconds in row["faults"] if fault == kind] for row in rows]
        took = [s for some in by_run for s in some if s is not None]
        each = [", ".join("never" if s is None else f"{s:.1f}" for s in some) or "-" for some in by_run]
        middle, most = (f"{statistics.median(took):.1f}", f"{max(took):.1f}") if took else ("-", "-")
        cells.append([kind, str(sum(map(len, by_run))), middle, most, *each])
    return results.table(["fault", "times", "median s", "longest s", *(row["name"] for row in rows)], cells)


def run_table(rows: Sequence[Row]) -> str:
    """What was kept, by run."""
    parts = ("dispatched", "consumed", "dropped", "cancelled", "in_flight", "left_over")
    header = ["run", "updates", "faults", *(p.replace("_", " ") for p in parts), "duplicates", "orphans", "segments left"]
    header += ["checkpoints restored"]
    cells = []
    for row in rows:
        sums = [sum(stream[part] for stream in row["streams"].values()) for part in parts]
        kept = [row.get("duplicates", "-"), row["orphans"], row["segments_left"], len(row["audit"]["checkpoints"])]
        reached = "-" if row["return"] is None else f"{row['return']:.2f}"
        end = [reached, f"{row['threshold']:g}"]
        cells.append([row["name"], *(f"{n:,}" for n in (row["version"], len(row["faults"]), *sums)), *map(str, kept), *end])
    return results.table([*header, "final return", "threshold"], cells)


def markdown(result: Row) -> str:
    rows, m, s = result["rows"], result["machine"], result["settings"]
    wrong = [f"- {r['name']}: {w}" for r in rows for w in r["wrong"]]
    about = (
        f"{result['made']}; {NUM_NODES} nodes on {m['cores']} cores, {m['cpu']}; seed {', '.join(map(str, s['seed']))}; "
        f"{s['drop']:.1%} of messages"
    )
    end = "all thresholds are reached" if s["calm"] else "thresholds did not count"
    lines = [
        "# Faults and recoveries",
        f"{about} between nodes lost, each up to {s['delay'] * 1000:.0f} ms late.",
        f"`{result['command']}`",
        "Seconds from the harm (noticing it included) until all who were lost are back and the next update is done:",
        fault_table(rows),
        "Rows of all streams: dispatched = consumed + dropped + cancelled + in flight. Left over must be 0:",
        run_table(rows),
        "\n".join(wrong or [f"All versions once, all accounts add up, nothing is left, all checkpoints restored, {end}."]),
    ]
    return "\n\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=18.0, help="length in all (18)")
    parser.add_argument("--each", type=float, default=0.0, help="minutes of faults for each run (0: its part of --minutes)")
    parser.add_argument("--calm", type=float, default=2.0, help="minutes at most without faults, at the end of each run (2)")
    parser.add_argument("--every", type=float, default=5.0, help="seconds between two faults, give or take a third (5)")
    parser.add_argument("--seed", type=int, nargs="+", default=[0], help="a run of each case for each (0)")
    parser.add_argument("--drop", type=float, default=0.002, help="share of the messages between nodes that are lost (0.002)")
    parser.add_argument("--delay", type=float, default=0.005, help="seconds that a message may be late (0.005)")
    parser.add_argument("--only", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--quick", action="store_true", help="two minutes; thresholds do not count")
    parser.add_argument("--out", default=str(RESULTS / NAME), help="folder of the result")
    args = parser.parse_args(argv)
    if args.quick:
        args.minutes, args.calm = 2.0, 0.0
    args.each = args.each or args.minutes / len(args.only) / len(args.seed)
    from ray_cluster import Nodes

    harm = {name: getattr(args, name) for name in ("drop", "delay") if getattr(args, name)}
    os.environ["RUNNEL_MESSAGE_FAULTS"] = ",".join(f"{name}={value}" for name, value in harm.items())
    nodes, rows = Nodes(NUM_NODES), []
    try:
        for name, seed in itertools.product(args.only, args.seed):
            print(f"{name}, seed {seed}", flush=True)
            rows.append(run_case(name, seed, nodes, args))
    finally:
        nodes.close()
    made = datetime.now().astimezone().isoformat(timespec="seconds")
    command = f"python -m benchmarks.faults.chaos {' '.join(sys.argv[1:] if argv is None else argv)}".strip()
    result: Row = {
        "made": made,
        "command": command,
        "machine": machine.facts(),
        "code": machine.commit(venvs.ROOT),
        "rows": rows,
    }
    result["settings"] = {k: v for k, v in vars(args).items() if k != "out"}
    folder = Path(args.out)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "result.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    (folder / "table.md").write_text(markdown(result), encoding="utf-8")
    print(markdown(result))
    return int(any(row["wrong"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())

"""Sessions of the sandbox beside its stateless form: latency of a call, calls a second, start and memory of a session.

python -m benchmarks.llm.sessions --out benchmarks/results/llm/sessions

Both forms take turns in one process, with a thread for each session. CPU time is that of this process and of all that it
started, as the kernel counts it; so "calls a CPU second" hardly depends on what else runs here, while seconds on the wall do.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import machine
from benchmarks.results import number, table
from runnel.llm.sandbox.run import run_python
from runnel.llm.sandbox.session import SandboxSession, SessionPool

Row = dict[str, Any]
CODE = {
    "small": "x = 20\nprint(2 * x + 2)",
    "usual": "import math\nprimes = [n for n in range(2, 400) if all(n % p for p in range(2, math.isqrt(n) + 1))]\n"
    "print(len(primes), sum(primes))",
}
WIDTHS = (1, 8, 64)
ANCHOR_CALLS, ANCHOR_S = 45_000, 0.3
"""rStar2-Agent (arXiv 2508.20722): calls of tools in a step, and the mean seconds that its code service takes for one."""
TICKS = os.sysconf("SC_CLK_TCK")


# ------------------------------------------------------------------------------------------------------------------ clocks
def descendants(pid: int) -> list[int]:
    """All processes below `pid`, of those that have not ended."""
    try:
        found = [int(p) for task in Path(f"/proc/{pid}/task").iterdir() for p in (task / "children").read_text().split()]
    except OSError:
        return []
    return found + [p for child in found for p in descendants(child)]


def cpu_of(pid: int) -> float:
    """CPU seconds of a process and of its children that it has waited for."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / TICKS


def cpu_s() -> float:
    """CPU seconds of this process and all that it started."""
    own = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(u.ru_utime + u.ru_stime for u in own) + sum(map(cpu_of, descendants(os.getpid())))


def memory_mb(pids: list[int]) -> float:
    """Memory of processes in MB; pages that several share count once in all."""
    found = 0
    for pid in pids:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        found += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return found / 1024


# ---------------------------------------------------------------------------------------------------------------- measures
def calls(run: list[Callable[[], object]], seconds: float) -> Row:
    """Calls of all of `run` at once, each in a thread of its own, for so many seconds."""

    def go(call: Callable[[], object]) -> list[float]:
        found = list[float]()
        while time.perf_counter() < end:
            began = time.perf_counter()
            call()
            found.append(time.perf_counter() - began)
        return found

    with ThreadPoolExecutor(len(run)) as threads:
        before, began = cpu_s(), time.perf_counter()
        end = began + seconds
        each = sorted(t for found in threads.map(go, run) for t in found)
        took, used = time.perf_counter() - began, cpu_s() - before
    return {
        "calls": len(each),
        "median_ms": 1e3 * median(each),
        "p99_ms": 1e3 * each[int(0.99 * len(each))],
        "calls_per_s": len(each) / took,
        "calls_per_cpu_s": len(each) / used,
    }


def call(session: SandboxSession, code: str) -> None:
    """One call of a session, which has to succeed."""
    found = session.run(code)
    assert found.status == "ok", found


def start(code: str) -> None:
    """One call without sessions, which has to succeed."""
    found = run_python(code)
    assert found.status == "ok", found


def measure_calls(seconds: float) -> list[Row]:
    """Both forms at all widths."""
    rows = list[Row]()
    for width in WIDTHS:
        for name, code in CODE.items():
            with SessionPool(warm=0, most=width) as pool:
                sessions = [pool.take() for _ in range(width)]
                for session in sessions:
                    call(session, code)
                found = calls([lambda s=s, c=code: call(s, c) for s in sessions], seconds)  # type: ignore[misc]
            rows.append({"form": "session", "code": name, "at once": width, **found})
            found = calls([lambda c=code: start(c)] * width, seconds)  # type: ignore[misc]
            rows.append({"form": "stateless", "code": name, "at once": width, **found})
    return rows


def timed(step: Callable[[], Any]) -> tuple[float, Any]:
    """Milliseconds of a step, and what it gave."""
    began = time.perf_counter()
    found = step()
    return 1e3 * (time.perf_counter() - began), found


def measure_starts(times: int) -> Row:
    """Milliseconds: of a pool with its first session; of a session that waits already, and of one that does not; of an end."""
    first, ready, fresh, ends = [], [], [], []
    for _ in range(times):
        with SessionPool(warm=2) as pool:
            took, session = timed(pool.take)
            first.append(took)
            time.sleep(0.3)  # so that those ahead are ready
            took, other = timed(pool.take)
            ready.append(took)
            ends.append(timed(session.close)[0])
            other.close()
        with SessionPool(warm=0) as pool:
            pool.take().close()
            fresh += [timed(pool.take)[0] for _ in range(4)]
    found = {"pool and first session": first, "session, ready": ready, "session, not ready": fresh, "end of a session": ends}
    return {name: {"median_ms": median(values), "max_ms": max(values)} for name, values in found.items()}


def measure_memory(num: int) -> Row:
    """Memory of a session that has run a little, and its share of the process they are forked from; CPU of start and end."""
    with SessionPool(warm=0, most=num) as pool:
        pool.take().close()
        before = cpu_s()
        for _ in range(num):
            pool.take().close()
        used = cpu_s() - before
        sessions = [pool.take() for _ in range(num)]
        for session in sessions:
            call(session, CODE["usual"])
        all_mb = memory_mb(descendants(os.getpid()))
    return {"sessions": num, "mb_a_session": all_mb / num, "cpu_ms_a_session": 1e3 * used / num}


# ------------------------------------------------------------------------------------------------------------------ report
def markdown(result: Row) -> str:
    """The result as a page."""
    m, memory = result["machine"], result["memory"]
    keys = ("median_ms", "p99_ms", "calls_per_s", "calls_per_cpu_s")
    rows = [[f"{r['form']}, {r['code']} code, {r['at once']} at once", *(number(r[k]) for k in keys)] for r in result["calls"]]
    starts = [[name, number(v["median_ms"]), number(v["max_ms"])] for name, v in result["starts"].items()]
    best = max(
        (r for r in result["calls"] if r["form"] == "session" and r["code"] == "usual"), key=lambda r: r["calls_per_cpu_s"]
    )
    cpu = ANCHOR_CALLS / best["calls_per_cpu_s"]
    parts = [
        "# Sessions of the sandbox",
        f"{m['cores']} cores, {m['cpu']}, {m['memory_gib']} GiB; {result['others']:.2f} cores were busy with something else.",
        f"**Disturbed: {result['warning']}.** Of the columns, the last one suffers least." if result["warning"] else "",
        table(["calls", "median (ms)", "99th percentile (ms)", "calls a second", "calls a CPU second"], rows),
        table(["start and end", "median (ms)", "longest (ms)"], starts),
        f"A session: {memory['mb_a_session']:.1f} MB ({memory['sessions']} of them, shared pages counted once), and "
        f"{memory['cpu_ms_a_session']:.0f} ms of CPU for its start and end.",
        f"rStar2's step has {ANCHOR_CALLS:,} calls; its code service takes {ANCHOR_S} s for one on average. As many of the "
        f"usual calls take {cpu:.0f} CPU seconds here.",
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def main() -> None:
    """Read the command line, measure, write."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measure")
    parser.add_argument("--starts", type=int, default=10)
    parser.add_argument("--idle-limit", type=float, default=60.0)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    idle = machine.wait_idle(args.idle_limit)
    ticks, used, began = machine.read_ticks(), cpu_s(), time.perf_counter()
    result: Row = {"machine": machine.facts(), "code": machine.commit(Path.cwd())}
    result |= {"calls": measure_calls(args.seconds), "starts": measure_starts(args.starts), "memory": measure_memory(64)}
    after, took = machine.read_ticks(), time.perf_counter() - began
    busy = machine.busy_cores(ticks, after, num_cores=os.cpu_count() or 1) if ticks and after else float("nan")
    result |= {"others": max(0.0, busy - (cpu_s() - used) / took), "warning": idle.warning}
    print(markdown(result))
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "result.json").write_text(json.dumps(result, indent=1) + "\n")
        (args.out / "table.md").write_text(markdown(result))


if __name__ == "__main__":
    main()

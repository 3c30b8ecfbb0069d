"""The model of `runnel plan` against real runs on this machine: predicted and measured rates, and the error of each.

python -m benchmarks.plan.check --docs
python -m benchmarks.plan.check --seconds 3 --only ppo --out /tmp/look

For each configuration the costs of the stages are measured in one process, a rate is predicted from them for the launcher and
placement in question, and then the real run is timed. About four minutes on an idle machine of two cores.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks import machine, venvs
from benchmarks.harness import RESULTS
from runnel.graphs.run_config import RunConfig
from runnel.plan.costs import Costs
from runnel.plan.model import predict
from runnel.plan.search import placement_of
from runnel.run import api, registry
from runnel.run.ledger import Callbacks
from runnel.run.measure import measure, plain
from runnel.run.wiring import available_cores

NAME = "plan/check"
WITHIN = 0.2
MARKS = ("<!-- check: benchmarks.plan.check --docs writes this table -->", "<!-- /check -->")
Row = dict[str, Any]


def asleep(ms: float) -> dict[str, Any]:
    """CartPole on a simulator that takes so long for a step and leaves the core alone."""
    return {
        "env": "runnel.envs.toy:StepTime",
        "env_kwargs": {"step_ms": ms},
        "vector": {"backend": "serial"},
        "compiled": "off",
    }


@dataclass(frozen=True)
class Case:
    """A configuration to predict and to run."""

    name: str
    recipe: str
    settings: Mapping[str, Any] = field(default_factory=dict)


PPO = {**asleep(1.0), "num_envs": 4, "num_steps": 64, "ppo": {"num_epochs": 2}}
SLOW = {**asleep(5.0), "num_envs": 2, "num_steps": 16, "ppo": {"num_epochs": 2}}
APART = {"launcher": "local"}
LM = {"task": "reverse", "num_prompts": 4, "group_size": 4, "max_tokens": 12, "placement": {"threads": 1}}
CASES = (
    Case("PPO, 1 ms, one process", "ppo", PPO),
    Case("PPO, 1 ms, an actor apart, sync", "ppo", {**PPO, **APART}),
    Case("PPO, 1 ms, an actor apart, one step off", "ppo", {**PPO, **APART, "staleness": {"mode": "one_step"}}),
    Case("PPO, 1 ms, two actors, sync", "ppo", {**PPO, **APART, "num_actors": 2}),
    Case("PPO, 1 ms, two actors, window", "ppo", {**PPO, **APART, "num_actors": 2, "staleness": {"mode": "window"}}),
    Case("PPO, 5 ms, one process", "ppo", SLOW),
    Case("PPO, 5 ms, two actors, sync", "ppo", {**SLOW, **APART, "num_actors": 2}),
    Case("PPO, 5 ms, a policy worker, sync", "ppo", {**SLOW, **APART, "placement": {"policy_workers": 1}}),
    Case(
        "PPO, 5 ms, two actors, a policy worker, window",
        "ppo",
        {**SLOW, **APART, "num_actors": 2, "placement": {"policy_workers": 1}, "staleness": {"mode": "window"}},
    ),
    Case("APPO, 1 ms, two actors, window", "appo", {**asleep(1.0), **APART, "num_steps": 64, "num_envs": 4}),
    Case("DQN, 1 ms, one process", "dqn", {**asleep(1.0), "min_fill": 200}),
    Case(
        "DQN, 1 ms, an actor apart, window of 16",
        "dqn",
        {**asleep(1.0), **APART, "min_fill": 200, "staleness": {"mode": "window", "max_lag": 16}},
    ),
    Case("PPO, CartPole, one process", "ppo", {"num_steps": 128, "vector": {"backend": "serial"}, "compiled": "off"}),
    Case("GRPO, a small model, one process", "grpo", LM),
    Case("GRPO, a small model, an actor apart, one step off", "grpo", {**LM, **APART, "staleness": {"mode": "one_step"}}),
)


def config_of(case: Case) -> RunConfig:
    config = registry.configure(registry.load_recipe(case.recipe), case.settings)
    quiet = plain(config)
    return replace(quiet, launcher=config.launcher, placement=config.placement)


def predicted(case: Case, config: RunConfig, seconds: float) -> tuple[float, Costs]:
    """Units a second by the model, and the costs that it was told."""
    costs = measure(case.recipe, config, seconds=seconds)
    return predict(costs, placement_of(config, costs, cores=available_cores())).units_per_s, costs


def measured(case: Case, config: RunConfig, *, warmup: float, seconds: float) -> float:
    """Units a second of a real run, over whole updates after a warm-up."""
    marks: list[tuple[float, int]] = []

    def look(row: Mapping[str, Any]) -> bool:
        marks.append((time.perf_counter(), row["steps"] + row["tokens"]))
        return marks[-1][0] < marks[0][0] + warmup + seconds

    with tempfile.TemporaryDirectory(prefix="runnel-plan-check-") as out:
        api.train_config(case.recipe, replace(config, out=out), callbacks=Callbacks(on_update=look), progress=False)
    late = [m for m in marks if m[0] >= marks[0][0] + warmup] or marks
    first, last = late[0], late[-1]
    return (last[1] - first[1]) / max(last[0] - first[0], 1e-9)


def run_case(case: Case, args: argparse.Namespace) -> Row:
    config = config_of(case)
    guess, costs = predicted(case, config, args.seconds / 2)
    real = measured(case, config, warmup=args.warmup, seconds=args.seconds)
    row = {"name": case.name, "unit": costs.unit, "predicted": guess, "measured": real, "error": guess / real - 1.0}
    return {**row, "costs": asdict(costs)}


def markdown(result: Row) -> str:
    m = result["machine"]
    lines = [
        "# Predicted and measured",
        f"{result['made']}; {m['cores']} cores, {m['cpu']}. Within {WITHIN:.0%}: {result['within']} of {len(result['rows'])}.",
        "",
        "| configuration | predicted | measured | error |",
        "| --- | ---: | ---: | ---: |",
    ]
    for r in result["rows"]:
        lines.append(f"| {r['name']} | {r['predicted']:,.0f} {r['unit']}/s | {r['measured']:,.0f} | {r['error']:+.0%} |")
    return "\n".join(lines) + "\n"


def write_docs(table: str) -> None:
    """Put the table into docs/scale/plan.md, between its two marks."""
    page = venvs.ROOT / "docs/scale/plan.md"
    before, _, rest = page.read_text(encoding="utf-8").partition(MARKS[0])
    after = rest.partition(MARKS[1])[2]
    rows = table.partition("\n\n")[2].strip()
    summary = table.splitlines()[1]
    page.write_text(f"{before}{MARKS[0]}\n{summary}\n\n{rows}\n{MARKS[1]}{after}", encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=6.0, help="length of each measurement (6)")
    parser.add_argument("--warmup", type=float, default=1.5, help="seconds of a run before it, from the first update (1.5)")
    parser.add_argument("--only", default="", help="only configurations whose name has this in it")
    parser.add_argument("--out", default=str(RESULTS / NAME), help="folder of the result")
    parser.add_argument("--docs", action="store_true", help="write the table into docs/scale/plan.md too")
    args = parser.parse_args(argv)
    rows = []
    for case in (c for c in CASES if args.only.lower() in c.name.lower()):
        rows.append(run_case(case, args))
        r = rows[-1]
        print(f"{r['name']}: predicted {r['predicted']:,.0f}, measured {r['measured']:,.0f} ({r['error']:+.0%})", flush=True)
    result: Row = {
        "made": datetime.now().astimezone().isoformat(timespec="seconds"),
        "machine": machine.facts(),
        "code": machine.commit(venvs.ROOT),
        "within": sum(abs(r["error"]) <= WITHIN for r in rows),
        "rows": rows,
    }
    folder = Path(args.out)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "result.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    (folder / "table.md").write_text(markdown(result), encoding="utf-8")
    if args.docs:
        write_docs(markdown(result))
    print(f"within {WITHIN:.0%}: {result['within']} of {len(rows)}")
    return int(result["within"] < min(8, len(rows)))


if __name__ == "__main__":
    sys.exit(main())

"""Writes a model card: what a run learned, how well, how certain that is, its settings and limits, and how to load it.

The card is Markdown with the front matter that the Hugging Face Hub reads. All texts of a run (a command, a prompt, a tag) are
escaped.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from runnel.core.config import differences
from runnel.core.errors import ConfigError
from runnel.core.resolve import own_name
from runnel.eval.aggregates import Interval, over_seeds
from runnel.eval.reference import CLASSIC
from runnel.eval.statistics import bootstrap_interval, few_seeds, iqm, summarise
from runnel.report.budgets import COUNTS
from runnel.report.collect import method, seed_of, setting_of, task_of
from runnel.report.markdown import fence, md, md_table
from runnel.report.tables import Cell, Table
from runnel.report.tuning import is_trial
from runnel.report.verdicts import score_of
from runnel.track.evals import read_evals
from runnel.track.files import replace_file, writing
from runnel.track.folder import Row, RunFolder, Settings
from runnel.track.history import History, as_table, is_number, load_history, tags_in
from runnel.track.numbers import seconds, short
from runnel.track.status import has_ended

FEW_EPISODES = 100
"""An evaluation on fewer episodes is named as a limit."""
PER_RUN = ("seed", "out", "name", "tags", "track", "sinks", "log_every")
_MISSING = object()


def write_card(run: Path | str, defaults: Settings, out: Path | str | None = None) -> Path:
    """Write the card of a run and return its path. `defaults` are the recipe's own settings; the card shows what differs."""
    history = load_history(run)
    target = Path(out) if out is not None else Path(run) / "README.md"
    with writing(target, "the card"):
        target.parent.mkdir(parents=True, exist_ok=True)
        replace_file(target, card(history, defaults).encode(errors="replace"))
    return target


def card(run: History, defaults: Settings) -> str:
    """The card as text."""
    row = best_evidence(run)
    recipe, task = own_name(str(run.info.get("recipe", ""))), task_of(run)
    trained = " and ".join(f"{run.last[k]:,} {unit}" for k, unit in COUNTS if is_number(run.last.get(k)) and run.last[k])
    return "\n".join(
        [
            _front_matter(run, row),
            f"# {md(Path(recipe).stem or 'A policy')} on {md(task)}\n",
            f"Trained with runnel by the recipe `{_code(recipe)}`, seed {md(seed_of(run))}, for {trained or 'no steps'}"
            f" ({seconds(run.wall_s())}); it ended as: {md(run.status)}.\n",
            "## Results\n",
            _results(run, row),
            *_conversations(run),
            "## Limits\n",
            "\n".join(f"- {line}" for line in limits(run, row)) + "\n",
            "## Load it\n",
            fence(loading_code(run), "python"),
            "## Settings\n",
            _settings(run, defaults),
            "## Train it again\n",
            fence(str(run.info.get("command") or "not recorded"), "text"),
            _origin(run),
        ]
    )


def best_evidence(run: History) -> Row:
    """The row that the card's numbers come from: the last `runnel eval`, which plays fresh episodes, or else the last
    evaluation during training."""
    rows, _ = read_evals(run.folder.path)
    sound = [row for row in rows if is_number(row.get("mean")) and isinstance(row.get("returns"), list)]
    if sound:
        fresh = "prompts that training never saw" if _is_language(run) else "episodes that training never played"
        return {**sound[-1], "source": f"`runnel eval`, on {fresh}", "num": len(sound[-1]["returns"])}
    if run.evals and is_number(run.evals[-1].get("mean")):
        returns = run.evals[-1].get("returns")
        returns = returns if isinstance(returns, list) else []
        return {**run.evals[-1], "returns": returns, "source": "the last evaluation during training"}
    return {}


def limits(run: History, row: Row) -> list[str]:
    """Sentences that a reader must know before using the policy."""
    others = same_method(run)
    found = ["One seed only. Another seed may do much better or worse; the interval covers episodes, not seeds."]
    if others:
        found = [f"One of {len(others) + 1} seeds; the interval of the mean below covers episodes of this one policy only."]
    if not row:
        found.append("It was never evaluated: nothing is known about how well it does.")
    elif is_number(row.get("num")) and row["num"] < FEW_EPISODES:
        found.append(f"Evaluated on {row['num']} {_unit(run)} only.")
    if row and row.get("low") == row.get("high"):
        found.append(
            f"All {_unit(run)} gave the same return, so the interval has no width; rarer outcomes may have been missed."
        )
    if row and row.get("source", "").startswith("the last"):
        found.append("The score is from the evaluation that watched training, not from a separate test.")
    found += [f"A collapse was reported during training: {md(line)}" for line in run.collapses]
    if not has_ended(run.end):
        found.append(f"The run did not finish ({md(run.status)}).")
    if is_trial(run):
        found.append("It is a trial of a tuning study, chosen for its score: expect less on other seeds.")
    base = run.config.get("model")
    mind = f", and respect that of `{_code(base)}`, which it started from" if isinstance(base, str) and base else ""
    found.append(f"No licence is given: if you share it, add one (`license:` in the first lines){mind}.")
    if as_table(run.info.get("git")).get("dirty"):
        found.append("The code had uncommitted changes when it was trained.")
    elsewhere = "Tested in the environment it was trained in, and nowhere else."
    if _is_language(run):
        elsewhere = "Trained for the reward of one task; what it writes elsewhere was not examined, for quality or for safety."
    return [*found, elsewhere]


def same_method(run: History) -> list[History]:
    """Finished runs beside this one with the same settings, recipe and task, and other seeds."""
    found: dict[int | None, History] = {seed_of(run): run}
    for path in sorted(run.folder.path.resolve().parent.iterdir()):
        if path != run.folder.path.resolve() and _is_same(RunFolder(path), run):
            other = load_history(path)
            if has_ended(other.end) and task_of(other) == task_of(run):
                found.setdefault(seed_of(other), other)
    return [other for other in found.values() if other is not run]


def _is_same(folder: RunFolder, run: History) -> bool:
    """Whether another folder holds a run of the same method. It reads only the small files: metrics.jsonl may be long."""
    if not folder.has_run():
        return False
    try:
        config, info = folder.read_config(), folder.read_run_info()
    except ConfigError:
        return False
    return info.get("recipe") == run.info.get("recipe") and method(History(folder, config, info)) == method(run)


def loading_code(run: History) -> str:
    """Python code that loads the policy and uses it. The path is only the folder's name: a reader does not have the rest of
    it."""
    lines = ["import runnel as rl", "", f"policy = rl.load({run.name!r})  # the folder that this card belongs to"]
    env = run.config.get("env")
    if run.config.get("chat"):
        return "\n".join([*lines, "for happened in policy.play(0):", "    print(happened)"])
    if _is_language(run):
        prompt = next((str(s["prompt"]) for s in run.samples if isinstance(s.get("prompt"), str)), "Hello")
        return "\n".join([*lines, f"print(policy.act({prompt!r}))"])
    if not isinstance(env, str) or not env:
        return "\n".join([*lines, "# action = policy.act(observation)"])
    plain = env.removeprefix("tensor:")
    if plain != env and plain not in CLASSIC:
        return "\n".join(
            [*lines, f"# {env!r} is stepped as tensors; `runnel eval` plays it", "# action = policy.act(observation)"]
        )
    more = f", kwargs={run.config['env_kwargs']!r}" if run.config.get("env_kwargs") else ""
    more += f", wrappers={run.config['wrappers']!r}" if run.config.get("wrappers") else ""
    stack = as_table(run.config.get("vector")).get("frame_stack")
    more += f", frame_stack={int(stack)}" if is_number(stack) and stack else ""
    return "\n".join([*lines, f"print(rl.evaluate(policy, {plain!r}, episodes=5{more}).returns)"])


def _is_language(run: History) -> bool:
    return isinstance(run.config.get("task"), str) and "env" not in run.config


def _unit(run: History) -> str:
    return "conversations" if run.config.get("chat") else "prompts" if _is_language(run) else "episodes"


PASTS = {
    "keep": "all tokens as they were said (`talk.history` keep). A chat template that rewrites the past (some drop earlier "
    "thoughts) shows the model less than it had in training",
    "template": "as the model's chat template renders all messages (`talk.history` template), which is how it is usually "
    "deployed",
}
"""What a prompt says of earlier turns."""


def _conversations(run: History) -> list[str]:
    """How to prompt a model that was trained on conversations: in the same way."""
    config, talk = run.config, as_table(run.config.get("talk"))
    tools = [str(name) for name in config.get("tools") or ()]
    if not config.get("chat") and not tools:
        return []
    past = PASTS.get(str(talk.get("history")), f"as {md(talk.get('history'))} says")
    written = (
        "as its chat template writes them, else as hermes" if talk.get("dialect") == "auto" else f"as {talk.get('dialect')}"
    )
    context = config.get("max_context") or "as many as it reads, at most 4096"
    found = [f"Prompts held the past {past}."]
    if config.get("chat"):
        found.append(f"Environment: `{_code(str(config['chat']))}`.")
    if tools:
        found.append(f"Tools: {', '.join(f'`{_code(name)}`' for name in tools)}.")
    found.append(f"Calls of tools are written {md(written)} (`talk.dialect` {md(talk.get('dialect'))}).")
    found.append(f"Most replies: {md(config.get('max_turns'))}. Most tokens: {md(context)}.")
    return ["## Conversations\n", "\n".join(f"- {line}" for line in found) + "\n"]


def _results(run: History, row: Row) -> str:
    if not row:
        return "None: the run was never evaluated.\n"
    returns = [float(r) for r in row.get("returns") or [] if is_number(r)]
    rows: list[list[Cell]] = []
    if returns:
        s, over = summarise(returns), f"{len(returns)} {_unit(run)}"
        rows.append(["mean return", Interval(s.mean, s.low, s.high), over])
        middle = Interval(s.iqm, *bootstrap_interval(returns, statistic=iqm))
        rows += [["IQM of returns", middle, over], ["median return", s.median, over]]
    else:
        rows.append(["mean return", float(row["mean"]), ""])
    for name, p in as_table(row.get("pass")).items():
        if isinstance(p, Mapping) and all(is_number(p.get(k)) for k in ("value", "low", "high", "prompts")):
            rows.append([str(name), Interval(p["value"], p["low"], p["high"]), f"{p['prompts']} prompts"])
    rows += _over_seeds(run)
    table = md_table(Table("results", "Results", ["", "value (95 % interval)", "over"], rows))
    return f"{table}\nMeasured by {row['source']}, version {md(row.get('version', '–'))} of the parameters.\n"


def _over_seeds(run: History) -> list[list[Cell]]:
    scores = [score_of(other, "last") for other in [run, *same_method(run)]]
    known = [score for score in scores if score is not None]
    if len(known) < 2:
        return []
    caution = f"; {words}" if (words := few_seeds(len(known))) else ""
    return [["mean over seeds", over_seeds(known), f"{len(known)} seeds, last evaluation of each{caution}"]]


def _settings(run: History, defaults: Settings) -> str:
    own = {k: v for k, v in run.config.items() if k not in PER_RUN}
    changed = differences({k: v for k, v in defaults.items() if k not in PER_RUN}, own) if defaults else {}
    # a later version of the recipe may have settings that the run does not
    kept = {name: pair for name, pair in changed.items() if setting_of(own, name, _MISSING) is not _MISSING}
    rows: list[list[Cell]] = [[name, json.dumps(new), json.dumps(old)] for name, (old, new) in kept.items()]
    table = md_table(Table("settings", "", ["changed from the recipe", "value", "recipe's own"], rows))
    none = "All settings are the recipe's own.\n" if defaults else ""
    whole = fence(json.dumps({k: v for k, v in run.config.items() if k != "out"}, indent=2), "json")
    return f"{table or none}\n<details><summary>all settings</summary>\n\n{whole}\n</details>\n"


def _origin(run: History) -> str:
    git = as_table(run.info.get("git"))
    changes = ", with uncommitted changes" if git.get("dirty") else ""
    state = f"commit {git['commit']}{changes}" if git.get("commit") else "unknown"
    versions = ", ".join(f"{k} {v}" for k, v in as_table(run.info.get("versions")).items())
    items = {"code": state, "python": run.info.get("python"), "platform": run.info.get("platform"), "versions": versions}
    items["made"] = run.info.get("created")
    return "\n".join(f"- {key}: {md(value)}" for key, value in items.items() if value) + "\n"


def _front_matter(run: History, row: Row) -> str:
    """The front matter. It is YAML in the style of JSON, which quotes everything that could be markup."""
    task, language = task_of(run), _is_language(run)
    kind = "text-generation" if language else "reinforcement-learning"
    recipe = Path(str(run.info.get("recipe", ""))).stem
    tags = list(dict.fromkeys(["reinforcement-learning", recipe, task, *tags_in(run.config)]))
    lines = ["---", "library_name: runnel", f"pipeline_tag: {kind}", f"tags: {json.dumps([t for t in tags if t])}"]
    metrics = _metrics(row)
    if metrics:
        results = [{"task": {"type": kind, "name": kind}, "dataset": {"name": task, "type": task}, "metrics": metrics}]
        lines += ["model-index:", f"- name: {json.dumps(run.name)}", f"  results: {json.dumps(results)}"]
    return "\n".join([*lines, "---", ""])


def _metrics(row: Row) -> list[Row]:
    shares = {name: as_table(share) for name, share in as_table(row.get("pass")).items()}
    found = [("mean_reward", row.get("mean"), row.get("low"), row.get("high"))]
    found += [(name, share.get("value"), share.get("low"), share.get("high")) for name, share in shares.items()]
    return [
        {"type": name, "name": f"{name}, 95 % interval {short(low)} to {short(high)}", "value": value, "verified": False}
        for name, value, low, high in found
        if is_number(value) and is_number(low) and is_number(high)
    ]


def _code(text: str) -> str:
    return text.replace("`", "'").replace("\n", " ")

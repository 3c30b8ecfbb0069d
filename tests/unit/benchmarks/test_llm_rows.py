"""The rows on language models are whole, and their runner works: with sides that only pretend."""

import ast
import json
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from benchmarks.harness import Entry, Measure, Side
from benchmarks.llm import run, work
from benchmarks.llm.rows import CUDA, HERE, ROWS, Row

ALL = [(device, name) for device, rows in ROWS.items() for name in rows]
MEASURES = {
    "ours.py": ("grpo", "decode", "learn"),
    "peer_trl.py": ("grpo",),
    "peer_transformers.py": ("decode", "learn"),
    "peer_vllm.py": ("decode",),
}
PRETENDS = """
import json, os, sys
seed = int(sys.argv[sys.argv.index("--seed") + 1])
with open(LOG, "a") as log:
    log.write(NAME + " " + " ".join(sys.argv[1:]) + "\\n")
print("noise before the answer")
print(json.dumps({"tokens_per_s": 100.0 * FACTOR + seed, "seconds": 1.0 / FACTOR, "path": os.environ.get("PYTHONPATH", "")}))
"""


@pytest.mark.parametrize(("device", "name"), ALL)
def test_every_side_is_asked_in_words_that_the_scripts_know(device, name, monkeypatch):
    entry = ROWS[device][name].entry
    assert entry.sides[0].name == "runnel"
    assert entry.name == f"llm/{name}-{device}"
    for measure in entry.measures:
        assert measure.more_is_better == (measure.value == "tokens_per_s")
        assert measure.of in {"", *(m.name for m in entry.measures)}
        for side in entry.sides:
            assert side.script.is_file()
            monkeypatch.setattr(sys, "argv", [side.script.name, *side.arguments, *measure.arguments, "--seed", "3"])
            args = work.arguments(*MEASURES[side.script.name])
            assert (args.device, args.seed) == (device, 3)
            assert isinstance(json.loads(args.set), dict)


def test_the_learning_rows_say_what_their_folder_must_hold():
    for rows in ROWS.values():
        for row in rows.values():
            shapes = {m.arguments[m.arguments.index("--shape") + 1] for m in row.entry.measures}
            assert shapes <= work.SHAPES.keys()
            if any(m.arguments[0] == "grpo" for m in row.entry.measures):
                assert {row.shape} == shapes


def test_scripts_of_peers_and_the_runner_need_nothing_heavy():
    for path in (*HERE.glob("peer_*.py"), HERE / "work.py", HERE / "run.py", HERE / "rows.py"):
        top = ast.parse(path.read_text()).body
        found = {a.name.partition(".")[0] for n in top if isinstance(n, ast.Import) for a in n.names}
        found |= {(n.module or "").partition(".")[0] for n in top if isinstance(n, ast.ImportFrom)}
        heavy = {"runnel", "transformers", "trl", "vllm"} | ({"torch"} if not path.name.startswith("peer_") else set())
        assert not found & heavy, path.name


def pretend(tmp_path, monkeypatch):
    log, sides = tmp_path / "asked.log", []
    for name, factor in (("runnel", 3.0), ("trl", 1.0)):
        text = PRETENDS.replace("LOG", repr(str(log))).replace("NAME", repr(name)).replace("FACTOR", str(factor))
        (tmp_path / f"{name}.py").write_text(text)
        sides.append(Side(name, tmp_path / f"{name}.py", ("nothing that pip knows",)))
    rate = Measure("tokens", "Tokens", "tokens_per_s", "tokens/s", True, ("grpo",), 3, 20.0, ("tokens_per_s", "seconds"))
    again = Measure("update", "Seconds", "seconds", "s", False, ("grpo",), 3, 20.0, of="tokens")
    monkeypatch.setitem(CUDA, "pretended", Row(Entry("llm/pretended-cuda", "Pretended", tuple(sides), (rate, again), ())))
    return log


def go(tmp_path, *more):
    given = ["--device", "cuda", "--row", "pretended", "--our-python", sys.executable, "--peer-python", sys.executable]
    return run.main([*given, "--out", str(tmp_path / "out"), "--idle-limit", "0", "--idle-cores", "1e9", *more])


def test_sides_take_turns_and_one_set_of_runs_gives_several_numbers(tmp_path, monkeypatch):
    log = pretend(tmp_path, monkeypatch)
    assert go(tmp_path, "--pairs", "2", "--", "--updates", "1") == 0
    asked = log.read_text().splitlines()
    assert asked == [f"{side} grpo --updates 1 --seed {seed}" for seed in (1, 2) for side in ("runnel", "trl")]
    folder = tmp_path / "out" / "llm" / "pretended-cuda"
    result = json.loads((folder / "result.json").read_text())
    rate, update = (m["ratios"]["trl"] for m in result["measures"])
    assert rate["ratio"] == pytest.approx(301.5 / 101.5)
    assert (rate["low"], rate["high"]) == pytest.approx((302 / 102, 301 / 101))
    assert update["ratio"] == pytest.approx(3.0)
    command = result["measures"][0]["sides"]["trl"]["runs"][0]["command"]
    assert sys.executable.endswith(command.split()[0])
    table = (folder / "table.md").read_text()
    assert "2.97x" in table
    assert "3.00x" in table
    assert table.count("run of") == 1
    assert "cores" in table


def test_one_measure_alone_is_run(tmp_path, monkeypatch):
    log = pretend(tmp_path, monkeypatch)
    assert go(tmp_path, "--pairs", "1", "--measure", "update") == 0
    assert len(log.read_text().splitlines()) == 2


def test_quick_is_one_short_pair_and_a_relative_path_still_leads_there(tmp_path, monkeypatch):
    log = pretend(tmp_path, monkeypatch)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["src", "/elsewhere"]))
    assert go(tmp_path, "--quick") == 0
    assert log.read_text().splitlines() == [f"{side} grpo --updates 1 --seed 1" for side in ("runnel", "trl")]
    result = json.loads((tmp_path / "out" / "llm" / "pretended-cuda" / "result.json").read_text())
    path = result["measures"][0]["sides"]["runnel"]["runs"][0]["path"]
    assert path == os.pathsep.join([os.path.abspath("src"), "/elsewhere"])


def test_the_list_names_every_row_and_unknown_rows_are_refused(capsys):
    assert run.main(["--list"]) == 0
    text = capsys.readouterr().out
    assert all(f"--device {device} --row {name}" in text for device, name in ALL)
    assert run.main([]) == 2
    assert run.main(["--device", "cpu", "--row", "learn"]) == 2
    assert "grpo, decode, or all" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="no Python at 'nowhere/python'"):
        run.main(["--row", "grpo", "--our-python", "nowhere/python"])


def test_a_page_of_families_says_what_was_found():
    from benchmarks.llm import families

    found = [*families.rows(["gemma2"]), *families.rows(["bert", "dbrx"])]
    assert [(r.kind, r.path) for r in found] == [
        ("gemma2", "modules"),
        ("bert", "refused"),
        ("bert", "modules"),
        ("dbrx", "not built"),
    ]
    text = families.page(found, "1.2.3")
    assert "transformers 1.2.3" in text
    assert "| modules | 2 |" in text
    assert "| `bert` |  | refused | " in text
    assert "| `bert` | is_decoder: True | modules | 5/5 | " in text


def test_the_page_of_families_has_every_causal_type_of_transformers():
    from benchmarks.llm.families import PAGE
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    named = {line.split("`")[1] for line in PAGE.read_text().splitlines() if line.startswith("| `")}
    assert named >= set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)

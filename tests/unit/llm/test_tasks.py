from __future__ import annotations

import pytest

from runnel.core.errors import ConfigError, DataError
from runnel.llm.rewards.components import RewardComponent
from runnel.llm.tasks import Example, ExampleSource, TextTask, make_reverse, make_task
from runnel.testing.rewards import check_reward


def test_reverse_splits_share_nothing_and_are_the_same_every_time():
    task = make_reverse(num_words=500, num_eval=50)
    again = make_reverse(num_words=500, num_eval=50)
    assert [e.prompt for e in task.train] == [e.prompt for e in again.train]
    train, held = {e.text for e in task.train}, {e.text for e in task.eval}
    assert (len(train), len(held), train & held) == (500, 50, set())
    assert all(e.answer == e.text[::-1] and 3 <= len(e.text) <= 6 for e in [*task.train, *task.eval])
    check_reward(task.reward, channels=task.channels)
    assert task.reward(["abc", "abc"], ["cba", "cb"]) == [1.0, 0.0]


def test_source_visits_everything_once_a_pass_and_resumes():
    examples = [Example(str(i)) for i in range(5)]
    source = ExampleSource(examples, seed=3)
    ids = [t.id for t in source.next(10)]
    assert sorted(ids[:5]) == sorted(ids[5:]) == list(range(5))
    assert ids[:5] != ids[5:]
    source.next(3)
    source.report(2, {"reward": 0.5})
    state = source.snapshot()
    expected = [t.id for t in source.next(9)]
    other = ExampleSource(examples, seed=99)
    other.restore(state)
    assert [t.id for t in other.next(9)] == expected
    assert (other.num_visits[2], other.last_reward[2]) == (1, 0.5)


def test_bad_tasks_are_refused():
    with pytest.raises(DataError, match="1 evaluation prompts are in the train split"):
        TextTask("t", [Example("a")], [Example("a")], len)
    with pytest.raises(ConfigError, match=r"task\.weights"):
        TextTask("t", [Example("a")], [Example("b")], len, channels=("x", "y"))
    with pytest.raises(ConfigError, match="reverse"):
        make_task("revers")
    with pytest.raises(DataError, match="has no eval examples"):
        TextTask("t", [Example("a")], [], len)


def test_a_users_own_file(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from runnel.llm.tasks import Example, TextTask\n"
        "def reward(prompts, completions, **columns):\n    return [float(len(c)) for c in completions]\n"
        "def make_task():\n    return TextTask('mine', [Example('a', 'b')], [Example('c', 'd')], reward)\n"
        "def wrong():\n    return 3\n"
    )
    assert make_task(f"{file}:make_task").name == "mine"
    with pytest.raises(ConfigError, match="it returned int"):
        make_task(f"{file}:wrong")


def test_several_rewards_are_channels_with_weights_and_what_does_not_apply_is_left_out():
    parts = {"exact": "exact", "brief": RewardComponent("brief", lambda p, c: [0.0], weight=0.5)}
    task = TextTask("t", [Example("a")], [Example("b")], parts)
    assert (task.channels, task.weights, task.token_channels) == (("exact", "brief"), (1.0, 0.5), ())
    assert task.total({"exact": 1.0, "brief": 1.0}) == 1.5
    assert task.total({"exact": None, "brief": 1.0}) == 0.5
    dense = TextTask("t", [Example("a")], [Example("b")], [RewardComponent("dense", len, 2.0, level="token")])
    assert dense.token_channels == ("dense",)
    assert dense.total({"dense": [0.5, 1.0]}) == 3.0

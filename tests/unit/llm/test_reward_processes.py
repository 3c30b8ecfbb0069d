from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from runnel.llm.rewards.components import RewardComponent
from runnel.llm.rewards.judging import RewardJob, RewardPool

FILE = str(Path(__file__).with_name("rewards_for_tests.py"))


def job(key, *completions, **columns):
    return RewardJob(key, ["p"] * len(completions), list(completions), columns, [[1, 2]] * len(completions))


def part(name, **kwargs):
    return RewardComponent("reward", f"{FILE}:{name}", **kwargs)


def alive(pid):
    """Whether a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_names_run_in_a_process_by_default_and_functions_in_a_thread():
    assert part("lengths").resolved().run == "process"
    assert RewardComponent("x", len).resolved().run == "thread"
    assert RewardComponent("x", "math").resolved().run == "process"


def test_each_way_to_fail_is_told_apart_and_the_next_job_is_judged():
    pool = RewardPool([part("behave", timeout_s=1.0)])
    words = ["raise", "fine", "exit", "die", "fine", "crash", "nan", "print", "hang", "fine", "light"]
    for key, word in enumerate(words):
        pool.submit(job(key, word))
    began = time.perf_counter()
    verdicts = pool.collect(block=True)
    assert [v.key for v in verdicts] == list(range(len(words)))
    found = {word: v.failure for word, v in zip(words, verdicts, strict=True) if v.rewards is None}
    assert found == {
        "raise": "ValueError: no such thing",
        "exit": "SystemExit: 3",
        "die": "its worker process exited with code 4",
        "crash": "its worker process was killed by signal SIGSEGV",
        "nan": "reward is nan",
        "hang": "timeout after 1 s (timeout_s of reward 'reward')",
    }
    assert verdicts[words.index("light")].rewards == {"reward": [0.0]}, "a worker must start without torch"
    assert time.perf_counter() - began < 30
    assert f"sleep 9876{os.getpid()}" not in subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
    pool.close()


def test_a_function_may_use_the_public_names():
    pool = RewardPool([part("behave")])
    pool.submit(job(0, "public"))
    assert pool.collect(block=True)[0].rewards == {"reward": [1.0]}
    pool.close()


def test_a_worker_is_reused_and_goes_with_its_pool():
    pool = RewardPool([part("behave")])
    pool.start()
    for key in range(3):
        pool.submit(job(key, "pid"))
    (pid,) = {int(v.rewards["reward"][0]) for v in pool.collect(block=True)}
    assert alive(pid)
    pool.close()
    assert not alive(pid)


def test_several_workers_at_once():
    pool = RewardPool([part("behave", workers=2)])
    pool.submit(job(0, "pid"))
    pool.submit(job(1, "slow"))
    pool.collect(block=True)
    began = time.perf_counter()
    for key in range(4):
        pool.submit(job(key, "slow"))
    assert all(v.rewards for v in pool.collect(block=True))
    assert time.perf_counter() - began < 1.45
    pool.close()


def test_nothing_waits_when_asked_not_to():
    pool = RewardPool([part("behave", timeout_s=2.0)])
    pool.submit(job(0, "hang"))
    began = time.perf_counter()
    for _ in range(50):
        assert pool.collect(block=False) == []
    assert time.perf_counter() - began < 0.5
    pool.close()


def test_async_dicts_options_and_columns_cross():
    pool = RewardPool([part("later", channels={"a": 1.0, "b": 1.0}, options={"bonus": 2.0})])
    pool.submit(job(0, "x", "y"))
    pool.submit(job(1, "x", answer=[{"deep": [1, None, "é"]}]))
    assert [v.rewards for v in pool.collect(block=True)] == [{"a": [1.0, 1.0], "b": [2.0, 2.0]}, {"a": [1.0], "b": [2.0]}]
    pool.submit(job(2, "x", answer=[object()]))
    assert "use run='thread'" in pool.collect(block=True)[0].failure
    pool.close()


def test_a_function_that_cannot_be_loaded_is_a_failure_with_its_reason(tmp_path):
    bad = tmp_path / "bad.py"
    bad.write_text("import not_there\ndef reward(prompts, completions): return []\n")
    pool = RewardPool([RewardComponent("reward", f"{bad}:reward"), part("lengths")][:1])
    for key in range(2):
        pool.submit(job(key, "x"))
    for verdict in pool.collect(block=True):
        assert "cannot load" in verdict.failure
        assert "not_there" in verdict.failure
    pool.close()


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal")
def test_no_worker_outlives_its_parent(tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(
        "import os, time\n"
        "from runnel.llm.rewards.components import RewardComponent\n"
        "from runnel.llm.rewards.judging import RewardJob, RewardPool\n"
        f"pool = RewardPool([RewardComponent('r', {FILE + ':behave'!r})])\n"
        "pool.submit(RewardJob(0, ['p'], ['pid'], {}))\n"
        "(verdict,) = pool.collect(block=True)\n"
        "pool.submit(RewardJob(1, ['p'], ['spin'], {}))\n"
        "print(int(verdict.rewards['r'][0]), flush=True)\n"
        "time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True, env=dict(os.environ))
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert alive(pid)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    for _ in range(100):
        if not alive(pid):
            break
        time.sleep(0.02)
    assert not alive(pid)


def test_a_round_trip_is_short():
    pool = RewardPool([part("lengths")])
    pool.submit(job(0, "x"))
    pool.collect(block=True)
    began = time.perf_counter()
    for key in range(50):
        pool.submit(job(key, "x" * 200, "y" * 200))
        pool.collect(block=True)
    assert (time.perf_counter() - began) / 50 < 0.02
    pool.close()

"""Reward functions that worker processes load by the path of this file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time


def lengths(prompts, completions, **columns):
    return [float(len(c)) for c in completions]


def behave(prompts, completions, **columns):
    """Does what the first completion says."""
    word = completions[0]
    if word == "hang":
        subprocess.Popen(["sleep", f"9876{os.getppid()}"])
    if word in ("hang", "spin"):
        while True:
            pass
    if word == "raise":
        raise ValueError("no such thing")
    if word == "exit":
        sys.exit(3)
    if word == "die":
        os._exit(4)
    if word == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if word == "print":
        print("noise on stdout " * 1000)
    if word == "nan":
        return [float("nan")]
    if word == "pid":
        return [float(os.getpid())]
    if word == "light":
        return [float("torch" in sys.modules)]
    if word == "public":
        import runnel as rl

        return [float(rl.Example("a").text == "a")]
    if word == "slow":
        time.sleep(0.4)
    return [1.0]


async def later(prompts, completions, bonus=0.0, **columns):
    return [{"a": 1.0, "b": bonus} for _ in completions]


def score_of_verl(data_source, solution_str, ground_truth, extra_info=None):
    return {"score": float(solution_str == ground_truth), "source": data_source}

"""Ranks that are processes: a model that is taken apart needs torch's default process group, of which a process has one."""

from __future__ import annotations

import gc
import os
import sys
import traceback
from collections.abc import Callable
from multiprocessing.context import ForkServerContext
from multiprocessing.forkserver import ensure_running
from pathlib import Path
from typing import Any

import torch
import torch.distributed.fsdp  # this and transformers once, before processes are made
from made_tokens import VOCAB
from test_token_algorithms import ALGORITHMS, SIZES
from transformers import LlamaForCausalLM  # noqa: F401

from runnel.core.sharding.param_shards import ParamShard
from runnel.flow.collective import TorchCollective
from runnel.flow.transports.shm import ShmChannel
from runnel.llm.learning.learner import TokenLearnerConfig
from runnel.llm.learning.sharded import learner_class
from runnel.llm.model.causal_lm import build_model


def apart(num: int, work: Callable[..., Any], *args: Any) -> list[Any]:
    """What `work(ranks, *args)` gives on each of `num` ranks; an error of one is raised here."""
    context = ForkServerContext()
    _start_server(context)
    address, answers = context.Queue(), context.Queue()
    processes = [
        context.Process(target=_child, args=(rank, num, work, args, address, answers), daemon=True) for rank in range(num)
    ]
    for process in processes:
        process.start()
    found = dict(answers.get(timeout=120) for _ in processes)
    for process in processes:
        process.join(30)
    failed = [said for said in found.values() if isinstance(said, str)]
    assert not failed, failed[0]
    return [found[rank] for rank in range(num)]


def _start_server(context: ForkServerContext) -> None:
    """Start the process that ranks are forked from, with all that they need imported once. It would not look for modules where
    this process does (Python 3.11 does not tell it), and leave out in silence what it cannot find."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    context.set_forkserver_preload([__name__, "test_sharded_learner"])
    try:
        ensure_running()
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def _child(rank: int, num: int, work: Any, args: Any, address: Any, answers: Any) -> None:
    torch.set_num_threads(1)
    ranks = TorchCollective(rank, num, timeout_s=60.0)
    if rank == 0:
        for _ in range(num - 1):
            address.put(ranks.listen())
    else:
        ranks.address = address.get(timeout=60)
    try:
        answers.put((rank, work(ranks, *args)))
    except Exception:
        answers.put((rank, traceback.format_exc()))
    answers.close()
    answers.join_thread()
    ranks.close()


def sharded(ranks: Any, name: str, reader: str, **changes: Any) -> Any:
    """A learner of `name` over ranks; over one it is the plain learner."""
    settings: Any = {"max_mismatch": 1e9, "precision": "float64", "max_grad_norm": 1e9, "warmup_updates": 1, "shard": True}
    config = TokenLearnerConfig(**(settings | changes))
    model = build_model(SIZES, VOCAB, seed=0)
    made = learner_class(config, ranks, "cpu")
    return made(config, model, algorithms={reader: ALGORITHMS[name]()}, collective=ranks, device="cpu")


def channel_of(pid: int, fd: int) -> ShmChannel:
    """The parameter channel in memory that another process has made."""
    return ShmChannel("policy", os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR), depth=2, ring=lambda: None)


def numbers(pieces: dict[str, ParamShard]) -> dict[str, Any]:
    """Pieces as data that can go to another process."""
    return {name: {"piece": p.value.detach().numpy().copy(), "start": p.start, "of": p.shape[0]} for name, p in pieces.items()}


class Peak:
    """Bytes that this process's memory, of its own or shared, grew by at most inside it."""

    def __enter__(self) -> Peak:
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5")  # the peak is measured from here
        self._before = _status("VmRSS")
        return self

    def __exit__(self, *error: object) -> None:
        self.bytes = _status("VmHWM") - self._before


def _status(name: str) -> int:
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith(name))
    return int(line.split()[1]) * 1024

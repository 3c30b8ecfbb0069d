"""The vllm engine. What needs vLLM itself is slow, and runs where an interpreter has it (RUNNEL_VLLM_PYTHON or .venv-vllm)."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_vllm import stand_in
from torch import Tensor

from runnel.core.contracts.params import ParamSet
from runnel.core.errors import ConfigError, DataError, EngineLost, NonFiniteError, WorkerFailure
from runnel.core.framing import MessageSocket
from runnel.llm.engines.hf import HfEngine
from runnel.llm.engines.hf import draw as draw_one
from runnel.llm.engines.hf import truncate as truncate_one
from runnel.llm.engines.requests import SamplingConfig, generate, make_request
from runnel.llm.engines.vllm import VllmConfig, VllmEngine
from runnel.llm.engines.vllm_server import draw
from runnel.llm.model.causal_lm import ModelConfig, build_model, load_model_params, model_params
from runnel.testing.engines import check_engine

ROOT = Path(__file__).parents[3]
PYTHON = os.environ.get("RUNNEL_VLLM_PYTHON") or str(ROOT / ".venv-vllm" / "bin" / "python")
VOCABULARY = 40
PROMPTS = [[1, 5, 6, 7], [1, 9], [1, 20, 21, 22, 23, 24]]
needs_vllm = pytest.mark.skipif(
    not Path(PYTHON).is_file(),
    reason="no interpreter with vLLM: set RUNNEL_VLLM_PYTHON or make .venv-vllm (docs/guides/engines.md)",
)


def sizes(tied: bool = True) -> ModelConfig:
    return ModelConfig(layers=2, width=64, heads=2, kv_heads=1, inner=128, max_positions=64, tie_embeddings=tied)


def decode(tokens: Sequence[int]) -> str:
    return "".join(chr(ord("0") + t) for t in tokens)


def make_folder(folder: Path, *, tied: bool = True) -> Path:
    torch.set_num_threads(1)
    build_model(sizes(tied), VOCABULARY, seed=0).save_pretrained(str(folder))
    return folder


def params(version: int = 3, *, seed: int = 7, tied: bool = True) -> ParamSet:
    return ParamSet(version, model_params(build_model(sizes(tied), VOCABULARY, seed=seed)))


def make_engine(folder: Path, python: str = PYTHON, **options: Any) -> VllmEngine:
    config = VllmConfig(python=python, threads=1, **options)
    return VllmEngine(folder, num_slots=4, max_length=32, eos_id=2, decode_text=decode, config=config)


def logprobs(params: Mapping[str, Tensor], tokens: Sequence[int], *, tied: bool = True) -> Tensor:
    model = build_model(sizes(tied), VOCABULARY, seed=0)
    load_model_params(model, params, bind=False)
    with torch.no_grad():
        return torch.log_softmax(model(torch.tensor([tokens])).logits[0], dim=-1)


def script(folder: Path, text: str) -> str:
    """Stands in for an interpreter."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


# ------------------------------------------------------------------------------------------------------- without vLLM
def test_messages_keep_their_frames() -> None:
    ours, theirs = socket.socketpair()
    a, b = MessageSocket(ours), MessageSocket(theirs)
    messages = [{"x": list(range(1000))}, {}, {"y": "é" * 100, "z": -0.1}]
    for message in messages:
        a.send(message)
    assert [b.next_message(1.0) for _ in messages] == messages
    with pytest.raises(TimeoutError):
        b.next_message(0.01)
    a.close()
    assert b.next_message(1.0) is None
    b.close()


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingConfig(0.7),
        SamplingConfig(0.0),
        SamplingConfig(1.5, top_k=5),
        SamplingConfig(1.5, top_p=0.6, min_p=0.02),
        SamplingConfig(2.0, top_k=9, top_p=0.8),
    ],
)
def test_tokens_are_drawn_as_the_reference_draws_them(sampling: SamplingConfig) -> None:
    logits = torch.randn(64, VOCABULARY, generator=torch.Generator().manual_seed(0))
    uniforms = torch.rand(64, generator=torch.Generator().manual_seed(1)).tolist()
    limits = {"top_k": sampling.top_k, "top_p": sampling.top_p, "min_p": sampling.min_p}
    rows = [{"heat": sampling.temperature, "uniform": u, **limits} for u in uniforms]
    for row, uniform, token, logprob, sampled in zip(logits, uniforms, *draw(logits, rows), strict=True):
        logp = torch.log_softmax(row / (sampling.temperature or 1.0), dim=-1)
        allowed = truncate_one(logp, sampling)
        wanted = draw_one(allowed, uniform) if sampling.temperature else int(logp.argmax())
        assert int(token) == wanted
        torch.testing.assert_close(logprob, logp[wanted])
        torch.testing.assert_close(sampled, allowed[wanted] if sampling.temperature else torch.tensor(0.0))


@pytest.mark.skipif(sys.executable == PYTHON, reason="this interpreter has vLLM")
def test_an_interpreter_without_vllm_is_named(tmp_path: Path) -> None:
    engine = make_engine(make_folder(tmp_path), python=sys.executable)
    with pytest.raises(ConfigError, match=r"has no vLLM.*RUNNEL_VLLM_PYTHON"):
        engine.load_params(params())
    with pytest.raises(WorkerFailure, match="closed"):
        engine.load_params(params())
    engine.close()


def test_a_child_that_dies_is_told_with_its_last_lines(tmp_path: Path) -> None:
    engine = make_engine(make_folder(tmp_path), python=script(tmp_path, "echo out of luck\nexit 3"))
    with pytest.raises(WorkerFailure, match=r"(?s)exit code 3.*out of luck"):
        engine.load_params(params())


SPEAKS = """
import json, socket, struct, sys
orders = json.loads(sys.argv[-1])
wire = socket.socket(fileno=orders["socket"])
for message in MESSAGES:
    data = json.dumps(message).encode()
    wire.sendall(struct.pack("<Q", len(data)) + data)
print("Traceback (most recent call last):\\nRuntimeError: told")
print("(MainProcess pid=7) INFO 11-18 07:26:10 [core.py:402] harmless", flush=True)
END
"""


def speaking(folder: Path, messages: Sequence[Mapping[str, Any]], end: str = "sys.exit(1)") -> str:
    """A stand-in that says something over its socket, then ends."""
    (folder / "child.py").write_text(SPEAKS.replace("MESSAGES", repr(list(messages))).replace("END", end))
    return script(folder, f'exec {sys.executable} {folder / "child.py"} "$@"')


HEAD_SIZE = {"error": "RuntimeError: Unsupported CPU attention configuration: head_dim=12 isa=1 kv_cache_idx=0"}
KILLED = "import os, signal; os.kill(os.getpid(), signal.SIG{})"


@pytest.mark.parametrize(
    ("messages", "end", "kind", "text"),
    [
        (
            [HEAD_SIZE],
            "sys.exit(1)",
            WorkerFailure,
            r"failed with RuntimeError: Unsupp.*no attention for heads of size 12",
        ),
        ([{"ready": True}, HEAD_SIZE], "sys.exit(1)", WorkerFailure, "no attention for heads of size 12"),
        ([], KILLED.format("SEGV"), WorkerFailure, "was killed by signal SIGSEGV"),
        ([], KILLED.format("KILL"), EngineLost, "was killed by signal SIGKILL: if memory ran out, .*cpu_cache_gib"),
        ([{"ready": True}], KILLED.format("SEGV"), EngineLost, "was killed by signal SIGSEGV"),
        ([{"ready": True}], "sys.exit(1)", EngineLost, r"exit code 1 \(RuntimeError: told\)"),
        ([{"error": "OutOfMemoryError: CUDA out of memory"}], "sys.exit(1)", WorkerFailure, "engine.vllm.memory_share"),
    ],
)
def test_the_first_line_of_an_error_is_its_cause(
    messages: list[dict[str, Any]], end: str, kind: type[WorkerFailure], text: str, tmp_path: Path
) -> None:
    """One that dies without a word is lost, and may be started again; one that says what is wrong would say it again."""
    engine = make_engine(make_folder(tmp_path), python=speaking(tmp_path, messages, end))
    with pytest.raises(WorkerFailure) as caught:
        engine.load_params(params())
    assert type(caught.value) is kind
    first, _, rest = str(caught.value).partition("\n")
    assert re.search(text, first)
    assert "harmless" not in rest


def test_an_engine_that_nobody_holds_ends_its_child(tmp_path: Path) -> None:
    engine = make_engine(make_folder(tmp_path), python=script(tmp_path, "exec sleep 60"))
    pid = engine.process.pid
    assert alive(pid)
    del engine
    assert not alive(pid)


def test_a_child_that_hangs_is_ended_at_its_deadline(tmp_path: Path) -> None:
    stuck = script(tmp_path, "echo waiting for nothing\nexec sleep 60")
    engine = make_engine(make_folder(tmp_path), python=stuck, start_timeout_s=0.5)
    pid = engine.process.pid
    with pytest.raises(
        WorkerFailure, match=r"(?s)did not answer within . s \(engine.vllm.start_timeout_s\).*waiting for nothing"
    ):
        engine.load_params(params())
    assert not alive(pid)


def test_bad_input_is_refused_with_the_fix(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    with pytest.raises(ConfigError, match="no such file"):
        make_engine(folder, python="/no/such/python")
    with pytest.raises(ConfigError, match="model folder"):
        make_engine(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="64 positions"):
        VllmEngine(folder, num_slots=1, max_length=65, eos_id=2)
    with pytest.raises(ConfigError, match="memory_share"):
        VllmConfig(memory_share=1.5)


# ---------------------------------------------------------------------------------------------------------- with vLLM
class Shared(VllmEngine):
    """Starts once for many checks: `close` only empties it."""

    def close(self) -> None:
        self.abort([*(r.id for r in self._waiting), *(c.request.id for c in self._running)])
        self.resume()


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmEngine]:
    folder = make_folder(tmp_path_factory.mktemp("model"))
    config = VllmConfig(python=PYTHON, threads=1)
    engine = Shared(folder, num_slots=4, max_length=32, eos_id=2, decode_text=decode, config=config)
    yield engine
    pid = engine.process.pid
    engine.process.close()
    assert not alive(pid)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text() if Path(f"/proc/{pid}").exists() else False


@pytest.mark.slow
@needs_vllm
def test_vllm_keeps_the_contract(engine: VllmEngine) -> None:
    check_engine(lambda: engine, params(), prompts=PROMPTS, logprobs=logprobs, decode=decode, exact=False)


@pytest.mark.slow
@needs_vllm
def test_same_tokens_as_the_reference_for_twenty_seeds(engine: VllmEngine) -> None:
    reference = HfEngine(build_model(sizes(), VOCABULARY, seed=0), num_slots=4, max_length=32, eos_id=2)
    requests = [make_request(i, [1, 5 + i, 7], seed=i, max_tokens=24, sampling=SamplingConfig(0.7)) for i in range(20)]
    for one in (engine, reference):
        one.load_params(params())
    for a, b in zip(generate(engine, requests), generate(reference, requests), strict=True):
        assert a.rows["tokens"].tolist() == b.rows["tokens"].tolist()
        torch.testing.assert_close(a.rows["logprob"], b.rows["logprob"], atol=1e-5, rtol=0)


@pytest.mark.slow
@needs_vllm
def test_damaged_weights_are_refused_counted_and_sent_again(engine: VllmEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    damaged, write = [True], engine.process.write

    def write_badly(values: Mapping[str, Tensor]) -> dict[str, Any]:
        told = write(values)
        if damaged[0]:
            assert engine.process._memory is not None
            engine.process._memory[100] ^= 1
        damaged[0] = damaged[0] and len(damaged) > 1
        return told

    monkeypatch.setattr(engine.process, "write", write_badly)
    before = engine.num_refused
    engine.load_params(params(11, seed=1))
    assert (engine.num_refused - before, engine.version) == (1, 11)
    damaged[:] = [True, True]
    with pytest.raises(DataError, match="refused 3 times"):
        engine.load_params(params(12, seed=2))
    assert engine.version == 11
    reply = generate(engine, [make_request(0, PROMPTS[0], seed=0, max_tokens=4)])[0]
    own = logprobs(params(seed=1).params, [*PROMPTS[0], *reply.rows["tokens"].tolist()])[len(PROMPTS[0]) - 1 : -1]
    torch.testing.assert_close(own.gather(1, reply.rows["tokens"][:, None])[:, 0], reply.rows["logprob"], atol=1e-5, rtol=0)


@pytest.mark.slow
@needs_vllm
def test_a_broken_model_is_named(engine: VllmEngine) -> None:
    broken = {name: torch.full_like(p, torch.nan) for name, p in params().params.items()}
    engine.load_params(ParamSet(20, broken))
    engine.submit([make_request(0, [1], seed=0, max_tokens=1)])
    with pytest.raises(NonFiniteError, match="NaN"):
        engine.step()
    engine.close()


@pytest.mark.slow
@needs_vllm
def test_nothing_of_old_weights_stays(tmp_path: Path) -> None:
    """A head of its own, and prompts long enough that vLLM keeps their keys and values for the next request."""
    config = replace(sizes(tied=False), max_positions=512)
    model = build_model(config, VOCABULARY, seed=0)
    model.save_pretrained(str(tmp_path))
    prompt = [3 + i % 30 for i in range(300)]
    engine = VllmEngine(tmp_path, num_slots=8, max_length=400, eos_id=2, config=VllmConfig(python=PYTHON, threads=1))
    try:
        for version in (1, 2, 3):
            load_model_params(model, model_params(build_model(config, VOCABULARY, seed=version)), bind=False)
            engine.load_params(ParamSet(version, model_params(model)))
            fresh = [make_request(10 * version + i, prompt, seed=i, max_tokens=16) for i in range(4)]
            for rows in (reply.rows for reply in generate(engine, fresh)):
                with torch.no_grad():
                    logp = torch.log_softmax(model(torch.tensor([[*prompt, *rows["tokens"].tolist()]])).logits[0], dim=-1)
                own = logp[len(prompt) - 1 : -1].gather(1, rows["tokens"][:, None])[:, 0]
                torch.testing.assert_close(own, rows["logprob"], atol=1e-5, rtol=0)
            engine.submit([make_request(100 + version, prompt, seed=version, max_tokens=90)])
            engine.step()  # this one runs while the weights change
            assert engine.so_far(100 + version)
    finally:
        engine.close()


PARENT = """
import sys, time
sys.path.insert(0, {tests!r})
from test_vllm_engine import make_engine, params
from pathlib import Path
engine = make_engine(Path({folder!r}))
engine.load_params(params())
print(engine.process.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.slow
@needs_vllm
def test_no_vllm_outlives_a_killed_parent(tmp_path: Path) -> None:
    code = PARENT.format(tests=str(Path(__file__).parent), folder=str(make_folder(tmp_path)))
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        session = sorted(members(child))
        assert child in session
        parent.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and any(alive(pid) for pid in session):
        time.sleep(0.1)
    assert not [pid for pid in session if alive(pid)]


def members(session: int) -> list[int]:
    """Processes of a session: vLLM and whatever it started."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[3]) == session:
            found.append(int(stat.parent.name))
    return found


def test_a_version_without_parameters_is_the_model_as_it_was_built(tmp_path: Path) -> None:
    """Of a partner that never changes. The stand-in for vLLM loads nothing by itself."""
    folder, python = make_folder(tmp_path / "model"), stand_in(tmp_path)
    given: dict[str, Any] = {"num_slots": 2, "max_length": 32, "eos_id": 2, "config": VllmConfig(python=python)}
    with pytest.raises(ConfigError, match="give it make_model"):
        closing(VllmEngine(folder, **given), ParamSet(0, {}))
    built = build_model(sizes(), VOCABULARY, seed=0)
    prompt, tokens = torch.tensor(PROMPTS[0]), torch.tensor([8, 9, 3])
    engine = VllmEngine(folder, make_model=lambda: built, **given)
    found = closing(engine, ParamSet(0, {}), lambda: engine.logprobs(prompt, tokens))
    hf = HfEngine(built, num_slots=1, max_length=32, eos_id=2)
    assert engine.version == 0
    assert torch.allclose(found, hf.logprobs(prompt, tokens), atol=1e-4)


def closing(engine: VllmEngine, given: ParamSet, then: Any = lambda: None) -> Any:
    try:
        engine.load_params(given)
        return then()
    finally:
        engine.close()

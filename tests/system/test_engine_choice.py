"""One run, three engines: the same seeds give the same completions, rewards and updates, whoever decodes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tiny_slices import assert_moved

import runnel as rl
from runnel.core.contracts.params import ParamSet
from runnel.core.errors import ConfigError
from runnel.llm.engines.choose import make_engine
from runnel.llm.engines.native import NativeEngine
from runnel.llm.engines.requests import generate, make_request
from runnel.llm.model.causal_lm import ModelConfig, build_model, model_params

PYTHON = os.environ.get("RUNNEL_VLLM_PYTHON") or str(Path(__file__).parents[2] / ".venv-vllm" / "bin" / "python")
needs_vllm = pytest.mark.skipif(
    not Path(PYTHON).is_file(),
    reason="no interpreter with vLLM: set RUNNEL_VLLM_PYTHON or make .venv-vllm (docs/guides/engines.md)",
)
TINY = {"layers": 2, "width": 64, "heads": 2, "kv_heads": 1, "inner": 64}
SETTINGS: dict[str, Any] = {
    "total_updates": 4,
    "num_prompts": 2,
    "group_size": 4,
    "lm": TINY,
    "track": (),
    "learner": {"lr": 1e-3, "warmup_updates": 1},
}


def digits(prompts: list[str], completions: list[str], **columns: Any) -> list[float]:
    """A number that any other token would change."""
    return [sum((i + 1) * b for i, b in enumerate(c.encode())) % 1009 / 1009 for c in completions]


def make_task() -> rl.TextTask:
    words = [a + b for a in "abcdefgh" for b in "aeiou"]
    train, evaluation = [rl.Example(w) for w in words[:30]], [rl.Example(w) for w in words[30:]]
    return rl.TextTask(name="digits", train=train, eval=evaluation, reward=digits, max_tokens=12)


def rewards(folder: Path, kind: str, **settings: Any) -> list[float]:
    """Mean and spread of the rewards of each update, of a GRPO run with this engine."""
    engine = {"kind": kind, **({"vllm": {"python": PYTHON, "threads": 1}} if kind == "vllm" else {})}
    given = {
        **SETTINGS,
        "track": (),
        "eval": {"every": 0, "episodes": 0},
        "engine": engine,
        "task": f"{__file__}:make_task",
        **settings,
    }
    run = rl.train("grpo", out=str(folder / kind), **given)
    assert run.status == "finished"
    assert_moved(run.path)
    rows = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    return [r["metrics"][name] for r in rows if r["kind"] == "update" for name in ("reward/mean", "reward/std")]


def test_hf_trains_as_native_does(tmp_path: Path) -> None:
    native = rewards(tmp_path, "native")
    assert len(set(native)) == len(native) == 8, "the rewards must tell one completion from another"
    assert rewards(tmp_path, "hf") == pytest.approx(native)


@pytest.mark.slow
@needs_vllm
@pytest.mark.parametrize("launcher", ["inproc", "local"])
def test_vllm_trains_as_native_does(tmp_path: Path, launcher: str) -> None:
    found = rewards(tmp_path, "vllm", launcher=launcher)
    assert found == pytest.approx(rewards(tmp_path, "native", launcher=launcher))


@pytest.mark.slow
@needs_vllm
@pytest.mark.timeout(600)
def test_vllm_replicas_on_a_cluster_train_as_native_ones_do(tmp_path: Path) -> None:
    """Two replicas, one on each node, in a run that is compared to the last token."""
    pytest.importorskip("ray")
    from ray_cluster import Nodes

    settings = {"launcher": "ray", "placement": {"policy_workers": 2, "threads": 1}}
    nodes = Nodes(2, num_cpus=3)
    try:
        found = rewards(tmp_path, "vllm", **settings)
        assert found == pytest.approx(rewards(tmp_path, "native", **settings))
    finally:
        nodes.close()


def test_an_engine_by_configuration() -> None:
    def model() -> Any:
        return build_model(ModelConfig(**TINY), 40, seed=0)

    found = []
    for kind in ("native", "hf"):
        config = rl.EngineConfig(kind=kind, num_slots=3)  # type: ignore[arg-type]
        engine = make_engine(config, model, num_slots=8, max_length=32, eos_id=2)
        assert engine.num_slots == 3  # type: ignore[attr-defined]
        engine.load_params(ParamSet(0, model_params(model())))
        found.append(generate(engine, [make_request(0, [1, 5], seed=1, max_tokens=16)])[0].rows["tokens"].tolist())
    assert found[0] == found[1]


def test_bad_settings_are_refused_with_the_fix() -> None:
    with pytest.raises(ConfigError, match="native, hf or vllm"):
        rl.EngineConfig(kind="sglang")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="num_slots"):
        rl.EngineConfig(num_slots=-1)


WINDOW: dict[str, Any] = {
    **SETTINGS,
    "task": f"{__file__}:make_task",
    "total_updates": 8,
    "staleness": {"mode": "window", "max_lag": 2},
    "learner": {"lr": 1e-2, "warmup_updates": 1},
    "eval": {"every": 0, "episodes": 0},
}


@pytest.mark.parametrize("kind", ["native", "hf"])
@pytest.mark.parametrize("placement", [{}, {"launcher": "local", "placement": {"policy_workers": 1, "threads": 1}}])
def test_every_version_of_an_asynchronous_run_proves_itself(kind: str, placement: dict[str, Any], tmp_path: Path) -> None:
    settings = {**WINDOW, "total_updates": 24} if placement else WINDOW
    run = rl.train("grpo", out=str(tmp_path), engine={"kind": kind}, **settings, **placement)
    rows = [row["metrics"] for row in run.rows()]
    checked = [row["mismatch/canary_version"] for row in rows if "mismatch/canary_kl" in row]
    assert max(row["mismatch/canary_kl"] for row in rows if "mismatch/canary_kl" in row) < 1e-6
    assert checked == sorted(checked)
    if not placement:  # elsewhere it is a matter of timing
        assert checked == list(range(1, 8))


def test_an_engine_that_keeps_an_old_tensor_stops_an_asynchronous_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = NativeEngine.load_params

    def forgetful(self: NativeEngine, params: ParamSet) -> None:
        name = "model.embed_tokens.weight"
        old = self.model.get_parameter(name).detach().clone()
        whole(self, ParamSet(params.version, {**params.params, name: old} if self.version >= 1 else params.params))

    monkeypatch.setattr(NativeEngine, "load_params", forgetful)
    with pytest.raises(rl.RunnelError, match=r"version \d disagrees .* mismatch/canary_kl = .* load_params") as error:
        rl.train("grpo", out=str(tmp_path), name="run", **WINDOW)
    assert "raised by worker 'actor-0'" in error.value.__notes__[0]
    monkeypatch.undo()
    run = rl.resume(tmp_path / "run")
    assert (run.status, run.version) == ("finished", 8)

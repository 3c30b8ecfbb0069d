"""The `vllm` engine: vLLM behind the contract of every engine, for runs that outgrow one process.

vLLM runs in a child process with its own interpreter, because vLLM pins its own version of torch. This side keeps the state of
requests: tokens, versions, stops. It consumes requests and produces completions. A step is one step of vLLM's scheduler; it
waits for the child with a deadline, and for nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from runnel.core.bounds import bounded, check_bounds
from runnel.core.contracts.inference import Reply, Request
from runnel.core.contracts.params import ParamSet
from runnel.core.errors import ConfigError, DataError, NonFiniteError
from runnel.core.resuming import OnResume, may_change
from runnel.core.state import State
from runnel.llm.engines.completions import Completion
from runnel.llm.engines.requests import Decode, check_requests, check_row
from runnel.llm.engines.stops import end_ids_of
from runnel.llm.engines.vllm_process import VllmProcess
from runnel.llm.engines.vllm_server import NOT_FINITE, Message
from runnel.llm.model.causal_lm import num_positions
from runnel.llm.model.lora import Adapters, merged_params

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

FORCED: Message = {"seed": 0, "skip": 0, "max_tokens": 1, "heat": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
"""Sampling settings for a forced token, which is not drawn; the child needs them in every order."""
MAX_TRIES = 3
"""How often weights are sent before a wrong checksum becomes an error."""


@dataclass(frozen=True)
class VllmConfig:
    """Where and how vLLM runs."""

    on_resume: ClassVar[OnResume] = may_change(
        *("python", "threads", "cpu_cache_gib", "memory_share", "eager", "start_timeout_s", "timeout_s"),
        then="the engine starts that way",
    )

    python: str = ""
    """Interpreter that has vLLM; empty uses RUNNEL_VLLM_PYTHON, else this one."""
    threads: int = bounded(0, at_least=0)
    """Threads of vLLM on a CPU; 0 leaves it to vLLM."""
    cpu_cache_gib: int = bounded(1, at_least=1)
    """Memory for keys and values on a CPU, in GiB."""
    memory_share: float = bounded(0.4, above=0, at_most=1)
    """Share of the GPU's memory that vLLM takes, weights included."""
    eager: bool = True
    """Run without compilation and CUDA graphs: starts sooner, decodes slower on a GPU."""
    start_timeout_s: float = bounded(600.0, above=0)
    """Longest that vLLM may take to start."""
    timeout_s: float = bounded(120.0, above=0)
    """Longest that one step or one change of weights may take."""

    def __post_init__(self) -> None:
        check_bounds(self, "engine.vllm.")


class VllmEngine:
    """Completes tokens with vLLM; `folder` is a Hugging Face model folder. `precision`: auto is float32 on CPUs, else bfloat16.

    The child starts at once, and the first `load_params` or `step` waits until it is ready. `load_params` copies the weights
    into shared memory with a checksum. The child verifies it: on a wrong checksum it refuses the weights, which is counted in
    `num_refused`, and they are sent again. vLLM copies verified weights into its model in place. Running completions are then
    sent to vLLM again with their tokens so far: vLLM computes their keys and values again, and their random numbers continue.
    A snapshot is restored in the same way. Adapters are merged on this side into the model of `make_model`, and the whole model
    is sent.
    """

    immediate = False

    def __init__(
        self,
        folder: str | Path,
        *,
        num_slots: int,
        max_length: int,
        eos_id: int | Sequence[int],
        decode_text: Decode | None = None,
        precision: str = "auto",
        config: VllmConfig | None = None,
        make_model: Callable[[], Any] | None = None,
    ) -> None:
        self._shapes = _parameter_shapes(folder, max_length)
        config = config or VllmConfig()
        self._make_model = make_model
        self._model: Any = None
        self.num_slots, self.max_length, self.decode_text = num_slots, max_length, decode_text
        self.end_ids = end_ids_of(eos_id)
        self.version, self.paused, self.num_tokens, self.num_refused = -1, False, 0, 0
        self._waiting: list[Completion] = []
        self._running: dict[str, Completion] = {}
        self._new: list[str] = []
        self._gone: list[str] = []
        self._num_keys = 0
        self.process = VllmProcess(
            {
                "folder": str(Path(folder).resolve()),
                "num_slots": num_slots,
                "max_length": max_length,
                "precision": precision,
                "cpu_cache_gib": config.cpu_cache_gib,
                "memory_share": config.memory_share,
                "eager": config.eager,
            },
            python=config.python,
            threads=config.threads,
            start_timeout_s=config.start_timeout_s,
            timeout_s=config.timeout_s,
        )

    # ------------------------------------------------------------------------------------------------------- requests
    def submit(self, requests: Sequence[Request]) -> None:
        check_requests(requests, self.max_length, self.decode_text)
        self._waiting += [Completion.of(r) for r in requests]

    def pending(self) -> int:
        return len(self._waiting) + len(self._running)

    def abort(self, ids: Sequence[int]) -> None:
        gone = set(ids)
        self._waiting = [c for c in self._waiting if c.id not in gone]
        self._drop([key for key, c in self._running.items() if c.id in gone])

    def so_far(self, id: int) -> list[int]:
        return next((list(c.tokens) for c in self._running.values() if c.id == id), [])

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    def close(self) -> None:
        """End the child process."""
        self.process.close()

    # ----------------------------------------------------------------------------------------------------------- step
    def step(self) -> list[Reply]:
        if self.paused:
            return []
        self._admit()
        if not self._running and not self._gone:
            return []
        message = {"op": "step", "add": [self._order(key) for key in self._new], "abort": self._gone}
        self._new, self._gone = [], []
        replies = []
        for key, token, logprob, sampling_logprob in self.process.ask(message)["made"]:
            reply = self._take(key, token, logprob, sampling_logprob)
            replies += [reply] if reply is not None else []
        return replies

    def _admit(self) -> None:
        """Send waiting requests to vLLM, oldest first. A request for an exact version waits until it is loaded."""
        free = self.num_slots - len(self._running)
        ready = [c for c in self._waiting if c.request.version in (-1, self.version)][:free]
        taken = {c.id for c in ready}
        self._waiting = [c for c in self._waiting if c.id not in taken]
        for completion in ready:
            self._give(completion)

    def _give(self, completion: Completion) -> None:
        """Send a completion to vLLM at the next step, under a new key, because vLLM may still know the old one."""
        self._num_keys += 1
        key = f"{completion.id}.{self._num_keys}"
        self._running[key] = completion
        self._new.append(key)

    def _order(self, key: str) -> Message:
        c = self._running[key]
        return {
            "key": key,
            "tokens": [*c.prompt, *c.tokens],
            "left": c.max_tokens - len(c.tokens),
            "draw": {
                "seed": c.seed,
                "skip": len(c.tokens),
                "max_tokens": c.max_tokens,
                "heat": c.sampling.temperature,
                "top_k": c.sampling.top_k,
                "top_p": c.sampling.top_p,
                "min_p": c.sampling.min_p,
            },
        }

    def _take(self, key: str, token: int, logprob: float, sampling_logprob: float) -> Reply | None:
        """Add a token to a completion. Return its reply if that was the last token."""
        completion = self._running.get(key)
        if completion is None:  # aborted since
            return None
        if logprob <= NOT_FINITE / 2:
            raise NonFiniteError("engine.logprob", self.version, "the model's logits are NaN or infinite")
        self.num_tokens += 1
        completion.append(token, logprob=min(logprob, 0.0), sampling_logprob=sampling_logprob, version=self.version)
        terminated = completion.terminated(self.end_ids, self.decode_text)
        full = len(completion.tokens) == completion.max_tokens
        if not terminated and not full:
            return None
        self._drop([key])
        return completion.reply(terminated=terminated, truncates=completion.sampling.truncates)

    def _drop(self, keys: Sequence[str]) -> None:
        """Forget completions. The next step tells vLLM to abort those that it is still working on."""
        for key in keys:
            completion = self._running.pop(key)
            if key in self._new:
                self._new.remove(key)
            elif len(completion.tokens) < completion.max_tokens:  # vLLM ends a full completion itself
                self._gone.append(key)

    def logprobs(self, prompt: Tensor, tokens: Tensor) -> Tensor:
        """Log-probabilities of `tokens` after `prompt`, by one request with a forced token for each of them. Running
        completions are dropped and sent to vLLM again."""
        check_row(prompt, tokens, self.max_length)
        running = list(self._running.values())
        self._drop(list(self._running))
        self._num_keys += 1
        row, found = [*prompt.tolist(), *tokens.tolist()], dict[str, float]()
        keys = {i: f"logprobs.{self._num_keys}.{i}" for i in range(len(prompt), len(row))}
        add = [{"key": key, "tokens": row[:i], "left": 1, "draw": {**FORCED, "force": row[i]}} for i, key in keys.items()]
        while len(found) < len(keys):
            answer = self.process.ask({"op": "step", "add": add, "abort": self._gone})
            add, self._gone = [], []
            found |= {key: logprob for key, _, logprob, _ in answer["made"]}
        for completion in running:
            self._give(completion)
        return torch.tensor([found[key] for key in keys.values()]).clamp(max=0.0)

    # ------------------------------------------------------------------------------------------------------ parameters
    def load_params(self, params: ParamSet) -> None:
        """Use `params` from the next `step` on. Requests for an exact other version must have ended before."""
        held = [c.id for c in self._running.values() if c.request.version not in (-1, params.version)]
        if held:
            raise DataError(f"version {params.version} arrived while requests {held[:3]} run at an exact older version")
        params = replace(params, params=self._whole(params.params))
        self._check_shapes(params.params)
        running = list(self._running.values())
        self._drop(list(self._running))
        self._send(params)
        self.version = params.version
        for completion in running:
            self._give(completion)

    def _whole(self, params: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """All plain parameters of a version, with adapters merged."""
        plain, adapters = Adapters.split(params)
        if adapters is None:
            return plain
        if self._model is None:
            if self._make_model is None:
                raise ConfigError("params", "adapters", "this engine has no model to merge them into; give it make_model")
            self._model = self._make_model()
        return merged_params(self._model, adapters, plain)

    def _send(self, params: ParamSet) -> None:
        """Send weights to the child. Its requests are aborted first: their keys and values depend on the old weights."""
        if self._gone:
            self.process.ask({"op": "step", "add": [], "abort": self._gone})
            self._gone = []
        self.process.wait_ready()
        for _ in range(MAX_TRIES):
            told = self.process.write(params.params)
            answer = self.process.ask({"op": "load", "version": params.version, **told})
            if "loaded" in answer:
                return
            self.num_refused += 1
        raise DataError(f"version {params.version} was refused {MAX_TRIES} times by vLLM: {answer['refused']}")

    def _check_shapes(self, params: Mapping[str, Tensor]) -> None:
        found = {name: list(value.shape) for name, value in params.items()}
        odd = sorted(name for name in self._shapes.keys() | found.keys() if self._shapes.get(name) != found.get(name))
        if odd:
            raise ConfigError("params", odd[:3], "these are not parameters of the engine's model; build both from one folder")

    # ----------------------------------------------------------------------------------------------------------- state
    def snapshot(self) -> State:
        """Requests and their tokens so far. Keys and values are not part of it: they are computed again."""
        return {
            "version": self.version,
            "paused": self.paused,
            "num_tokens": self.num_tokens,
            "waiting": [c.data() for c in self._waiting],
            "running": [c.data() for c in self._running.values()],
        }

    def restore(self, state: State) -> None:
        self._waiting = []
        self._drop(list(self._running))
        self.version, self.paused, self.num_tokens = state["version"], state["paused"], state["num_tokens"]
        self._waiting = [Completion.of_data(data) for data in state["waiting"]]
        for data in state["running"]:
            self._give(Completion.of_data(data))


def _parameter_shapes(folder: str | Path, max_length: int) -> dict[str, list[int]]:
    """Names and shapes of the parameters that a learner publishes for the model of `folder`. It does not load the weights."""
    from transformers import AutoConfig, AutoModelForCausalLM

    if not (Path(folder) / "config.json").is_file():
        raise ConfigError("engine.model", str(folder), "the vllm engine needs a Hugging Face model folder (save_pretrained)")
    config: PretrainedConfig = AutoConfig.from_pretrained(str(folder), trust_remote_code=False)
    limit = num_positions(config)
    if limit is not None and max_length > limit:
        raise ConfigError("engine.max_length", max_length, f"the model has {limit} positions; use at most that")
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    return {name: list(p.shape) for name, p in model.named_parameters()}

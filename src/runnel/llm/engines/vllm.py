"""The `vllm` engine: vLLM behind the contract of every engine, for runs that outgrow one process.

vLLM runs in a child process with its own interpreter, because vLLM pins its own version of torch. This side keeps the state of
requests: tokens, versions, stops. It consumes requests and produces completions. A step is one step of vLLM's scheduler; it
waits for the child with a deadline, and for nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from runnel.core.bounds import bounded, check_bounds
from runnel.core.contracts.inference import Reply
from runnel.core.contracts.params import ParamSet
from runnel.core.errors import ConfigError, DataError, NonFiniteError
from runnel.core.resuming import OnResume, may_change
from runnel.core.state import State
from runnel.llm.engines.completions import Completion, CompletionEngine
from runnel.llm.engines.requests import Decode, check_row
from runnel.llm.engines.vllm_process import VllmProcess
from runnel.llm.engines.vllm_server import NOT_FINITE, Message
from runnel.llm.model.causal_lm import model_params
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


class VllmEngine(CompletionEngine):
    """Completes tokens with vLLM; `folder` is a Hugging Face model folder. `precision`: auto is float32 on CPUs, else bfloat16.

    The child starts at once, and the first `load_params` or `step` waits until it is ready. `load_params` copies the weights
    into shared memory with a checksum. The child verifies it: on a wrong checksum it refuses the weights, which is counted in
    `num_refused`, and they are sent again. vLLM copies verified weights into its model in place. Running completions are then
    sent to vLLM again with their tokens so far: vLLM computes their keys and values again, and their random numbers continue.
    A snapshot is restored in the same way. Adapters are merged on this side into the model of `make_model`, and the whole model
    is sent.

    vLLM keeps the keys and values of requests that have ended, for any prompt that begins with the same tokens, in blocks of 16
    tokens. New weights empty that cache, so what a prompt is given was always made by the loaded version.
    """

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
        model = _model_config(folder)
        super().__init__(model, num_slots=num_slots, max_length=max_length, eos_id=eos_id, decode_text=decode_text)
        self._shapes = _parameter_shapes(model)
        config = config or VllmConfig()
        self._make_model = make_model
        self._model: Any = None
        self.num_refused = 0
        self._new: list[Completion] = []
        """Completions that vLLM has not been sent."""
        self._gone: list[str] = []
        """Keys of completions that vLLM works on and that have been removed here."""
        self._num_keys = 0
        self._uncounted: set[str] = set()
        """Keys of completions of which vLLM has not said how much of them it had in its cache."""
        orders = asdict(config) | {"folder": str(Path(folder).resolve()), "precision": precision}
        self.process = VllmProcess(orders | {"num_slots": num_slots, "max_length": max_length}, config)

    def close(self) -> None:
        """End the child process."""
        self.process.close()

    # ----------------------------------------------------------------------------------------------------------- step
    def step(self) -> list[Reply]:
        if self.paused:
            return []
        self._start([Completion(r) for r in self._take_waiting()])
        if not self._running and not self._gone:
            return []
        message = {"op": "step", "add": [_order(c) for c in self._new], "abort": self._gone}
        self._new, self._gone = [], []
        running, replies = {c.key: c for c in self._running}, list[Reply]()
        for key, token, logprob, sampling_logprob, reused in self.process.ask(message)["made"]:
            completion = running.get(key)
            if completion is not None:  # else it has been removed
                self._count(completion, reused)
                replies += self._take(completion, token, logprob, sampling_logprob)
        return replies

    def _start(self, completions: Sequence[Completion]) -> None:
        """Run completions: the next step sends them to vLLM, under new keys, because vLLM may still know the old ones."""
        for completion in completions:
            self._num_keys += 1
            completion.key = f"{completion.request.id}.{self._num_keys}"
            self._uncounted.add(completion.key)
        self._running += completions
        self._new += completions

    def _count(self, completion: Completion, reused: int) -> None:
        """Count the tokens that vLLM computed before the first new one, and those that it had in its cache."""
        if completion.key in self._uncounted:
            self._uncounted.remove(completion.key)
            computed = len(completion.prompt) + len(completion.tokens) - reused
            completion.prefilled += computed
            self.num_prefilled += computed
            self.num_reused += reused

    def _take(self, completion: Completion, token: int, logprob: float, sampling_logprob: float) -> list[Reply]:
        """Add a token to a completion. Return its reply if that was the last token."""
        if logprob <= NOT_FINITE / 2:
            raise NonFiniteError("engine.logprob", self.version, "the model's logits are NaN or infinite")
        logprob, truncates = min(logprob, 0.0), completion.sampling.truncates
        return self._append(completion, token, logprob=logprob, sampling_logprob=sampling_logprob, truncates=truncates)

    def _remove(self, running: Sequence[Completion]) -> None:
        """Forget completions. The next step tells vLLM to abort those that it is still working on."""
        super()._remove(running)
        for completion in running:
            self._uncounted.discard(completion.key)
            if completion in self._new:
                self._new.remove(completion)
            elif len(completion.tokens) < completion.max_tokens:  # vLLM ends a full completion itself
                self._gone.append(completion.key)

    def _stop_all(self) -> list[Completion]:
        """Remove all running completions from vLLM, and return them so that they can be started again."""
        running = list(self._running)
        self._remove(running)
        return running

    def logprobs(self, prompt: Tensor, tokens: Tensor) -> Tensor:
        """Log-probabilities of `tokens` after `prompt`, by one request with a forced token for each of them. Running
        completions are dropped and sent to vLLM again."""
        check_row(prompt, tokens, self.max_length)
        running = self._stop_all()
        self._num_keys += 1
        row, found = [*prompt.tolist(), *tokens.tolist()], dict[str, float]()
        keys = {i: f"logprobs.{self._num_keys}.{i}" for i in range(len(prompt), len(row))}
        add = [{"key": key, "tokens": row[:i], "left": 1, "draw": {**FORCED, "force": row[i]}} for i, key in keys.items()]
        while len(found) < len(keys):
            answer = self.process.ask({"op": "step", "add": add, "abort": self._gone})
            add, self._gone = [], []
            found |= {key: logprob for key, _, logprob, *_ in answer["made"]}
        self._start(running)
        return torch.tensor([found[key] for key in keys.values()]).clamp(max=0.0)

    # ------------------------------------------------------------------------------------------------------ parameters
    def load_params(self, params: ParamSet) -> None:
        """Use `params` from the next `step` on. Requests for an exact other version must have ended before."""
        self._check_version(params.version)
        params = replace(params, params=self._whole(params.params or self._built()))
        found = {name: list(value.shape) for name, value in params.params.items()}
        odd = sorted(name for name in self._shapes.keys() | found.keys() if self._shapes.get(name) != found.get(name))
        if odd:
            raise ConfigError("params", odd[:3], "these are not parameters of the engine's model; build both from one folder")
        running = self._stop_all()
        self._send(params)
        self.version = params.version
        self._start(running)

    def _built(self) -> Mapping[str, Tensor]:
        """The parameters of the model as it is built: what a version without parameters stands for."""
        if self._make_model is None:
            raise ConfigError("params", "none", "this engine has no model that it could use as it is; give it make_model")
        return model_params(self._make_model())

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

    # ----------------------------------------------------------------------------------------------------------- state
    def restore(self, state: State) -> None:
        """Continue from a snapshot. Keys and values are not part of it: vLLM computes them again."""
        self._stop_all()
        super().restore(state)
        self._start([Completion.of_data(data) for data in state["running"]])


def _order(completion: Completion) -> Message:
    """A completion as the child needs it: its tokens so far, and how to draw those that are left."""
    c, made = completion, len(completion.tokens)
    draw = {"seed": c.seed, "skip": made, "max_tokens": c.max_tokens, "heat": c.sampling.temperature}
    limits = {"top_k": c.sampling.top_k, "top_p": c.sampling.top_p, "min_p": c.sampling.min_p}
    return {"key": c.key, "tokens": [*c.prompt, *c.tokens], "left": c.max_tokens - made, "draw": draw | limits}


def _model_config(folder: str | Path) -> PretrainedConfig:
    from transformers import AutoConfig

    if not (Path(folder) / "config.json").is_file():
        raise ConfigError("engine.model", str(folder), "the vllm engine needs a Hugging Face model folder (save_pretrained)")
    return AutoConfig.from_pretrained(str(folder), trust_remote_code=False)


def _parameter_shapes(config: PretrainedConfig) -> dict[str, list[int]]:
    """Names and shapes of the parameters that a learner publishes for such a model. It does not load the weights."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    return {name: list(p.shape) for name, p in model.named_parameters()}

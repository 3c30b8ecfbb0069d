"""`TorchInferencer`: serves a torch module with `act` under the contract of requests and replies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from runnel.core.contracts.inference import Reply, Request, RowPolicy
from runnel.core.contracts.params import ParamSet
from runnel.core.errors import DataError
from runnel.core.records import Batch
from runnel.core.spaces import ArraySpec
from runnel.core.state import State


class Acts(Protocol):
    """Chooses actions for rows."""

    noise_size: int

    def act(self, rows: Batch, *, greedy: bool = False) -> Batch: ...


@runtime_checkable
class GivesProbabilities(Acts, Protocol):
    """Also says how probable each discrete action is where it draws. Rows as for `act` -> `[B, A]`"""

    def probabilities(self, rows: Batch) -> Tensor: ...


def to_act(net: Acts) -> None:
    """Put a module into eval mode: a learner may have trained it since. Dropout and batch statistics are for learning."""
    if getattr(net, "training", False):  # reading one flag is cheap; `eval` walks over all modules
        net.eval()  # type: ignore[attr-defined]


class AgentNet(Acts, Protocol):
    """A module that plays environments: `ActorCritic`, `QNet`, or a user's own."""

    state_spec: Mapping[str, ArraySpec]
    """Its recurrent state, by name; empty without one."""

    def state_dict(self) -> dict[str, Tensor]: ...

    def load_state_dict(self, state_dict: Mapping[str, Tensor], *, assign: bool = False) -> object: ...

    def to(self, device: torch.device) -> object: ...


class TorchInferencer:
    """Computes the replies to all pending requests in one forward pass (`merge`), or each in its own pass.

    In its own pass a reply does not depend on the other requests, to the last bit. Consumes requests and parameters, produces
    replies (on the device of the request's rows). A request that needs a version other than the loaded one waits for
    `load_params`. `member` names the learner of a team (`TeamLearner`) whose part of a version it takes.
    """

    immediate = True

    def __init__(
        self, net: AgentNet, *, greedy: bool = False, device: str = "cpu", merge: bool = True, member: str = ""
    ) -> None:
        self._prefix = f"{member}/" if member else ""
        self.net, self.greedy, self.device, self.merge = net, greedy, torch.device(device), merge
        net.to(self.device)
        self.acts: Acts = net
        """The network, or a kernel in place of its `act`."""
        self.version = -1
        self._pending: list[Request] = []
        self._bound: list[Tensor] | None = None

    def answer(self, rows: Batch) -> Batch:
        """The reply to `rows` at once, by the loaded parameters."""
        with torch.inference_mode():
            return self._forward(rows)

    def row_policy(self) -> RowPolicy | None:
        """The network for compiled environments, if a compiled kernel stands in for it."""
        give = getattr(self.acts, "row_policy", None)
        to_act(self.net)
        return None if give is None or self.greedy or self.device.type != "cpu" else give()

    def submit(self, requests: Sequence[Request]) -> None:
        self._pending.extend(requests)

    def step(self) -> list[Reply]:
        now, self._pending = self._pending, []
        if any(r.version not in (-1, self.version) for r in now):
            self._pending = [r for r in now if r.version not in (-1, self.version)]
            now = [r for r in now if r.version in (-1, self.version)]
        if not now:
            return []
        with torch.inference_mode():
            groups = [now] if self.merge else [[r] for r in now]
            return [reply for group in groups for reply in self._replies(group)]

    def abort(self, ids: Sequence[int]) -> None:
        gone = set(ids)
        self._pending = [r for r in self._pending if r.id not in gone]

    def pending(self) -> int:
        return len(self._pending)

    def load_params(self, params: ParamSet) -> None:
        """Bind shared parameters once (later calls only change the version); copy others to fixed addresses."""
        mine = params.params if not self._prefix else self._part(params)
        if params.shared:
            self._bind(mine)
        else:
            self._copy(mine)
        self.version = params.version

    def _part(self, params: ParamSet) -> dict[str, Tensor]:
        """The parameters of its member."""
        found = {k.removeprefix(self._prefix): v for k, v in params.params.items() if k.startswith(self._prefix)}
        if not found:
            known = sorted({name.partition("/")[0] for name in params.params})
            raise DataError(f"version {params.version} has nothing of member {self._prefix[:-1]!r}; it has {', '.join(known)}")
        return found

    def snapshot(self) -> State:
        """Version, waiting requests, and the parameters unless they are bound (then their owner saves them)."""
        params = None if self._bound is not None else {k: v.clone() for k, v in self.net.state_dict().items()}
        waiting = [{"id": r.id, "version": r.version, "rows": dict(r.rows)} for r in self._pending]
        return {"version": self.version, "params": params, "pending": waiting}

    def restore(self, state: State) -> None:
        if state["params"] is not None:
            self._copy(state["params"])
        self.version = state["version"]
        self._pending = [Request(r["id"], Batch(r["rows"]), r["version"]) for r in state["pending"]]

    def _replies(self, requests: list[Request]) -> list[Reply]:
        if len(requests) == 1:
            request = requests[0]
            return [Reply(request.id, self._forward(request.rows), self.version)]
        sizes = [len(next(iter(r.rows.values()))) for r in requests]
        joined = self._forward(Batch.cat([r.rows for r in requests]))
        parts = {k: torch.split(v, sizes) for k, v in joined.items()}
        return [Reply(r.id, Batch({k: p[i] for k, p in parts.items()}), self.version) for i, r in enumerate(requests)]

    def _forward(self, rows: Batch) -> Batch:
        to_act(self.net)
        home = next(iter(rows.values())).device
        if home == self.device:
            return self.acts.act(rows, greedy=self.greedy)
        return self.acts.act(rows.to(self.device), greedy=self.greedy).map(lambda x: x.to(home))

    def _bind(self, params: Mapping[str, Tensor]) -> None:
        tensors = list(params.values())
        # loading walks over all modules, so the same memory is bound only once
        if self._bound is None or any(a.data_ptr() != b.data_ptr() for a, b in zip(self._bound, tensors, strict=True)):
            self.net.load_state_dict(params, assign=True)
            self._bound = tensors

    def _copy(self, params: Mapping[str, Tensor]) -> None:
        if self._bound is not None:  # first take memory of our own: the bound tensors belong to the learner
            self.net.load_state_dict({k: v.clone() for k, v in self.net.state_dict().items()}, assign=True)
            self._bound = None
        self.net.load_state_dict(params)


class FixedInferencer(TorchInferencer):
    """Serves a network that never changes: a stored policy. Its inference stream has no parameter channel."""

    def load_params(self, params: ParamSet) -> None:
        """Nothing is loaded: the network has its parameters since it was made."""
        self.version = params.version

    def snapshot(self) -> State:
        """As for every inferencer, without the parameters."""
        return {**super().snapshot(), "params": None}

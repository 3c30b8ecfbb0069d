"""Stand-ins for `act` of a small network: numpy for a few rows, compiled kernels where a run is long enough to pay for them.

A stand-in calls the network's own `act` for all that its kernels do not serve (many rows in numpy, a greedy action). Kernels
read the memory of the parameters, so a stand-in makes them again when the parameters have moved: by loading a version, or by
an optimiser.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable

import torch
from torch import Tensor, nn

from runnel.core.contracts.inference import RowPolicy
from runnel.core.records import Batch
from runnel.kernels import stock
from runnel.kernels.small.numba import dqn as numba_dqn
from runnel.kernels.small.numba import ppo as numba_ppo
from runnel.kernels.small.numba.dqn import NumbaQ
from runnel.kernels.small.numba.ppo import NumbaActorCritic
from runnel.kernels.small.numpy_act import NumpyActor, NumpyQ
from runnel.kernels.small.triton import ppo as triton_ppo
from runnel.kernels.small.triton.ppo import TritonActorCritic
from runnel.nets.actor_critic import ActorCritic
from runnel.nets.inferencer import Acts
from runnel.nets.optim import flat_view
from runnel.nets.population import Population
from runnel.nets.q_nets import QNet

Way = Callable[[Batch, bool], Batch | None]
"""A fast form of `act`: rows and whether to be greedy -> the reply, or None for rows that it does not serve."""


Compiles = Callable[[torch.device], bool]
"""Says whether a run should compile kernels for a device."""


def fast_acts(net: Acts, compiles: Compiles) -> Acts:
    """The fastest stand-in for `net`; `net` itself if there is none, or if its code is not the stock one."""
    if type(net) is ActorCritic and not stock.why_changed(stock.ACTING, [net, net.body, net.head]):
        return FastActorCritic(net, compiles)
    if type(net) is QNet and not stock.why_changed(stock.ACTING_Q, [net, net.head]):
        return FastQ(net, compiles)
    if type(net) is Population and type(net.members[0]) is ActorCritic and not stock.why_changed(stock.ACTING, net.members):
        return FastPopulation(net, compiles)
    return net


class _Fast:
    """Base of stand-ins. Makes its fast forms again when the parameters of `net` have moved."""

    def __init__(self, net: ActorCritic | QNet, compiles: Compiles) -> None:
        self.net, self.noise_size, self._compiles = net, net.noise_size, compiles
        self._ways: list[Way] | None = None
        self._first: Tensor = next(net.parameters())
        self._address = 0
        self._places: list[int] = []
        _watch(net, weakref.ref(self))

    def act(self, rows: Batch, *, greedy: bool = False) -> Batch:
        """As `act` of the network."""
        for way in self._current():
            reply = way(rows, greedy)
            if reply is not None:
                return reply
        return self.net.act(rows, greedy=greedy)

    def _current(self) -> list[Way]:
        if self._ways is None or self._first.data_ptr() != self._address:
            self._first = next(self.net.parameters())
            self._address, self._places = self._first.data_ptr(), self._where()
            self._ways = self._make()
        return self._ways

    def _where(self) -> list[int]:
        return [p.data_ptr() for p in self.net.parameters()]

    def loaded(self) -> None:
        """Parameters were loaded. If none has moved, the kernels stay, because a CUDA graph may be using their memory."""
        if self._where() != self._places:
            self._ways = None

    def _make(self) -> list[Way]:
        raise NotImplementedError

    def _vector(self) -> Tensor | None:
        """The parameters as one vector, if kernels are wanted and the parameters are contiguous (those of a learner are)."""
        return flat_view(list(self.net.parameters())) if self._compiles(self._first.device) else None


def _watch(net: nn.Module, fast: weakref.ref[_Fast]) -> None:
    """Tell `fast` when parameters were loaded into `net`.

    The hook holds a weak reference only: a network is copied with its hooks, and its stand-in must not be copied with it.
    """

    def hook(module: nn.Module, incompatible: object) -> None:
        found = fast()
        if found is not None:
            found.loaded()

    net.register_load_state_dict_post_hook(hook)  # type: ignore[no-untyped-call]


class FastActorCritic(_Fast):
    """Stands in for `ActorCritic.act`."""

    net: ActorCritic

    def _make(self) -> list[Way]:
        self._rows: NumbaActorCritic | None = None
        ways: list[Way] = []
        if (vector := self._vector()) is not None:
            if not triton_ppo.why_not(self.net):
                ways.append(_unless_greedy(TritonActorCritic(self.net, vector).act))
            elif not numba_ppo.why_not(self.net):
                self._rows = NumbaActorCritic(self.net, vector)
                ways.append(_unless_greedy(self._rows.act))
        if self._first.is_cpu and not NumpyActor.why_not(self.net):
            numpy = NumpyActor(self.net)
            ways.append(lambda rows, greedy: numpy.act(rows, greedy=greedy))
        return ways

    def row_policy(self) -> RowPolicy | None:
        """The network for compiled environments; None if it has no kernels, or more than one plain vector to observe."""
        self._current()
        plain = self._rows is not None and not self.net.normalisers and len(self.net.env_spec.obs) == 1
        return self._rows.row_policy() if self._rows is not None and plain else None


class FastQ(_Fast):
    """Stands in for `QNet.act`."""

    net: QNet

    def _make(self) -> list[Way]:
        if not self._first.is_cpu or NumpyQ.why_not(self.net):
            return []
        numpy = NumpyQ(self.net)
        if (vector := self._vector()) is not None and not numba_dqn.why_not(self.net):
            numpy.best = NumbaQ(self.net, vector).best
        return [lambda rows, greedy: numpy.act(rows, greedy=greedy)]


class FastPopulation:
    """Stands in for `Population.act`: all members in one launch on a CUDA device, else each by its own stand-in."""

    def __init__(self, net: Population, compiles: Compiles) -> None:
        self.net, self.noise_size = net, net.noise_size
        self._members = [FastActorCritic(member, compiles) for member in net.members]
        self._compiles = compiles
        self._kernels: TritonActorCritic | None = None
        self._address = 0

    def act(self, rows: Batch, *, greedy: bool = False) -> Batch:
        """As `act` of the population."""
        if self.net.chosen is not None:
            return self._members[self.net.chosen_member()].act(rows, greedy=greedy)
        if not greedy and (kernels := self._found()) is not None:
            action, logprob = kernels.act(rows, rows["noise"])
            return Batch(action=action, logprob=logprob)
        return self.net.each(rows, lambda i, part: self._members[i].act(part, greedy=greedy))

    def _found(self) -> TritonActorCritic | None:
        first = next(self.net.members[0].parameters())
        if first.data_ptr() != self._address:
            self._address = first.data_ptr()
            serves = self._compiles(first.device) and not triton_ppo.why_not(self.net.members[0])
            vector = flat_view(list(self.net.parameters())) if serves else None
            num = len(self.net.members)
            self._kernels = None if vector is None else TritonActorCritic(self.net.members[0], vector, members=num)
        return self._kernels


def _unless_greedy(act: Callable[[Batch, Tensor], tuple[Tensor, Tensor]]) -> Way:
    """A `Way` from kernels that draw actions from the noise of the request."""

    def way(rows: Batch, greedy: bool) -> Batch | None:
        if greedy:
            return None
        action, logprob = act(rows, rows["noise"])
        return Batch(action=action, logprob=logprob)

    return way

"""Decides which kernels stand in for which code, once when a run is wired, with a reason that the run reports.

`agents/` and `nets/` are plain code that does not know kernels. An `Accelerator` gets a learner or a network that was just made
and replaces methods of that one object by kernels, if the object is exactly what the kernels were written for: types are
compared exactly, and methods, losses and layers one by one (`stock.py`). Code that is a user's own, patched or edited runs as
it is written, and the run reports the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from runnel.agents.appo import APPOLearner
from runnel.agents.ddpg import DDPGLearner
from runnel.agents.dqn import DQNLearner
from runnel.agents.league import LeagueLearner
from runnel.agents.ppo import Numbers, PPOLearner
from runnel.agents.ppo_population import PopulationLearner
from runnel.agents.rlpd import RLPDLearner
from runnel.agents.sac import SACLearner
from runnel.agents.td3 import TD3Learner
from runnel.agents.team import TeamLearner
from runnel.core.contracts.learning import Learner
from runnel.core.records import Batch
from runnel.core.trajectories import ACTIVE
from runnel.kernels import stock
from runnel.kernels.graphs import CudaGraphed
from runnel.kernels.host_memory import keep_freed_memory
from runnel.kernels.small import by_hand
from runnel.kernels.small.acting import fast_acts
from runnel.kernels.small.numba import dqn as numba_dqn
from runnel.kernels.small.numba import ppo as numba_ppo
from runnel.kernels.small.numba.dqn import NumbaQ
from runnel.kernels.small.numba.ppo import NumbaActorCritic
from runnel.kernels.small.triton import ppo as triton_ppo
from runnel.kernels.small.triton.population import TritonPopulationLearner
from runnel.kernels.small.triton.ppo import TritonActorCritic
from runnel.nets.inferencer import Acts
from runnel.nets.optim import Adam, flat_view

Mode = Literal["auto", "on", "off"]
COMPILE_FROM = {"cpu": 50_000, "cuda": 100_000_000}
"""Number of planned steps from which compiling kernels pays; a shorter run finishes sooner without them."""
OFF = "off with --compiled off"


@dataclass(frozen=True)
class Accelerated:
    """A learner, perhaps with kernels in place of its methods, and a text about that."""

    learner: Learner
    on: bool
    """Whether kernels or graphs stand in for the update."""
    text: str
    """For the first lines and the report of the run; may be empty."""


@dataclass(frozen=True)
class Accelerator:
    """Replaces methods by kernels under `mode`, the setting `compiled`: auto uses what fits and pays, on compiles in any case,
    off changes nothing. `num_steps` are the planned environment steps of the run."""

    mode: Mode = "auto"
    num_steps: int = 0

    def compiles(self, device: torch.device) -> bool:
        """Whether to use kernels that have to be compiled first."""
        return self.mode == "on" or (self.mode == "auto" and self.num_steps >= COMPILE_FROM.get(device.type, 1 << 62))

    def acts(self, net: Acts) -> Acts:
        """The fastest stand-in that acts for `net`; `net` itself with `off`, or if its code is not the stock one."""
        return net if self.mode == "off" else fast_acts(net, self.compiles)

    def learner(self, learner: Learner, *, idle_rows: bool = False) -> Accelerated:
        """Replace methods of `learner`, which was just made, by kernels. The returned learner may be another object.

        `idle_rows`: its streams have rows that do not decide at every step (`core/trajectories.ACTIVE`).
        """
        if isinstance(learner, TeamLearner | LeagueLearner):
            return self._members(learner, idle_rows=idle_rows)
        known = next((kind for kind in type(learner).__mro__ if kind in KINDS), None)
        if known is None:
            return Accelerated(learner, False, "")
        if self.mode == "off":
            return Accelerated(learner, False, "compiled: off, as you said (--compiled off)")
        if idle_rows and (known is not PPOLearner or _device(learner).type != "cpu"):
            return _plain(learner, "kernels train on every row, and in these streams not every row decides at every step")
        if type(learner) is not known:
            whose = "a variant" if type(learner).__module__.startswith("runnel.") else "your own learner"
            reason = f"{type(learner).__name__} is {whose}, and kernels are for {known.__name__} as it stands"
            return self._recorded_anyway(learner, known, reason)
        return KINDS[known].accelerate(self, learner)

    def _members(self, learner: TeamLearner | LeagueLearner, *, idle_rows: bool) -> Accelerated:
        """Each member by itself."""
        made = {name: self.learner(member, idle_rows=idle_rows) for name, member in learner.members.items()}
        learner.members.update({name: member.learner for name, member in made.items()})
        texts = dict.fromkeys(member.text for member in made.values())
        if len(texts) > 1:
            texts = dict.fromkeys(f"{name}: {member.text or 'no kernels'}" for name, member in made.items())
        return Accelerated(learner, any(member.on for member in made.values()), "; ".join(texts))

    def _recorded_anyway(self, learner: Learner, known: type, reason: str) -> Accelerated:
        """A user's own learner. Its update is recorded in a CUDA graph only if the user asks for it (`on`): a graph repeats the
        kernels of its recording, and with them a decision that the update takes in Python."""
        if not KINDS[known].recorded or _device(learner).type != "cuda" or not _alone(learner):
            return Accelerated(learner, False, f"compiled: off, because {reason}")
        if self.mode != "on":
            hint = "--compiled on records it in CUDA graphs, which is right if it takes no decision in Python"
            return Accelerated(learner, False, f"compiled: off, because {reason}; {hint}")
        _record(learner, known)
        return Accelerated(learner, True, f"compiled: CUDA graphs, {type(learner).__name__}; {OFF}")

    # ------------------------------------------------------------------------------------------------------------ forms
    def ppo(self, learner: PPOLearner) -> Accelerated:
        """Kernels for the passes over a batch and for values; on a CUDA device inside graphs."""
        name, device = KINDS[type(learner)].name, _device(learner)
        if not _alone(learner):
            return _plain(learner, f"{learner.collective.world_size} ranks share a batch")
        if learner.config.target_kl is not None:
            return _plain(learner, "an update that may end early (target_kl) takes a decision after each step")
        if changed := stock.why_changed(stock.UPDATES[type(learner)], [learner]):
            return self._recorded_anyway(learner, type(learner), changed)
        kernels, what, reason = self._small(learner, device)
        if kernels is not None:
            learner.value = kernels.values  # type: ignore[method-assign]
            learner.epochs = _epochs(learner, kernels)  # type: ignore[method-assign, assignment]
        if device.type == "cuda":
            _record(learner, type(learner))
            what = f"CUDA graphs{', ' + what if what else ''}"
        elif kernels is None:
            return _plain(learner, reason)
        layers = " of two layers" if kernels is not None else ""
        return Accelerated(learner, True, f"compiled: {what}, {name}{layers}{_first('step', kernels)}; {OFF}")

    def _small(self, learner: PPOLearner, device: torch.device) -> tuple[NumbaActorCritic | TritonActorCritic | None, str, str]:
        """Kernels for the learner's network and their name, or the reason why there are none."""
        module = triton_ppo if device.type == "cuda" else numba_ppo
        reason = self._why_not_yet(device) or module.why_not(learner.net) or _why_other_adam(learner.optimiser)
        reason = reason or stock.why_changed(stock.PPO, [learner, learner.net, learner.net.body, learner.net.head])
        vector = None if reason else flat_view(list(learner.net.parameters()))
        if vector is None:
            return None, "", reason or "parameters do not lie one after the other"
        if device.type == "cuda":
            return TritonActorCritic(learner.net, vector), "triton", ""
        keep_freed_memory()
        return NumbaActorCritic(learner.net, vector), "numba", ""

    def population(self, learner: PopulationLearner) -> Accelerated:
        """All members at once on a CUDA device; elsewhere each by itself."""
        first, c = learner.net.members[0], learner.config
        device = _device(learner.learners[0])
        reason = self._why_not_yet(device) or triton_ppo.why_not(first)
        alike = learner.exchange is None  # one launch for all members has one learning rate
        if alike and c.target_kl is None and not c.normalise_reward and device.type == "cuda" and not reason:
            places = (*stock.UPDATES[PopulationLearner], *stock.UPDATES[PPOLearner], *stock.PPO)
            if not stock.why_changed(places, [learner, *learner.learners, *learner.net.members]):
                joined = TritonPopulationLearner(c, learner.net, seed=learner.seed, device=learner.device)
                _record(joined, PPOLearner)
                return Accelerated(joined, True, f"compiled: CUDA graphs, triton, {KINDS[PopulationLearner].name}; {OFF}")
        if any(type(member) is not PPOLearner for member in learner.learners):
            return _plain(learner, "its members are learners of your own")
        each = [self.ppo(member) for member in learner.learners]
        return Accelerated(learner, each[0].on, f"{each[0].text}, for each member")

    def dqn(self, learner: DQNLearner) -> Accelerated:
        """Kernels for the gradient and the optimiser step, in one call."""
        device = _device(learner)
        if not _alone(learner):
            return _plain(learner, f"{learner.collective.world_size} ranks share a batch")
        reason = self._why_not_yet(device) or numba_dqn.why_not(learner.net) or _why_other_adam(learner.optimiser)
        reason = reason or stock.why_changed(stock.DQN, [learner, learner.net, learner.net.head])
        vectors = [flat_view(list(net.parameters())) for net in (learner.net, learner.target_net)]
        if reason or vectors[0] is None or vectors[1] is None:
            return _plain(learner, reason or "parameters do not lie one after the other")
        kernels = NumbaQ(learner.net, vectors[0])
        learner.step = _q_step(learner, kernels, vectors[1])  # type: ignore[method-assign, assignment]
        return Accelerated(learner, True, f"compiled: numba, DQN of two layers{_first('q_step', kernels)}; {OFF}")

    def replay(self, learner: SACLearner | TD3Learner) -> Accelerated:
        """On a CUDA device the whole update in one graph; on the CPU gradients by hand."""
        name = KINDS[type(learner)].name
        if not _alone(learner):
            return _plain(learner, f"{learner.collective.world_size} ranks share a batch")
        if changed := stock.why_changed(stock.UPDATES[type(learner)], [learner]):
            return self._recorded_anyway(learner, type(learner), changed)
        if _device(learner).type == "cuda":
            _record(learner, type(learner))
            return Accelerated(learner, True, f"compiled: CUDA graphs, {name}; {OFF}")
        nets = [learner.actor, learner.actor.head, learner.critic, learner.critic.head]
        reason = by_hand.why_not(learner) or stock.why_changed(stock.REPLAY_NETS, nets)
        if reason or _device(learner).type != "cpu":
            return _plain(learner, reason or f"there are no kernels for {_device(learner).type}")
        make = by_hand.sac_step if isinstance(learner, SACLearner) else by_hand.td3_step
        learner.step = make(learner)  # type: ignore[method-assign, assignment, arg-type]
        return Accelerated(learner, True, f"compiled: gradients written out, {name}; {OFF}")

    def none(self, learner: Learner) -> Accelerated:
        """No kernels, also where the learner extends one that has some."""
        return _plain(learner, f"there are no kernels for {KINDS[type(learner)].name}")

    def _why_not_yet(self, device: torch.device) -> str:
        if self.compiles(device):
            return ""
        least = COMPILE_FROM.get(device.type)
        if least is None:
            return f"there are no kernels for {device.type}"
        return f"{self.num_steps:,} steps are over before compiling pays (from {least:,}; --compiled on does it at once)"


class Kind(NamedTuple):
    """A learner for which there are kernels."""

    name: str
    accelerate: Callable[[Accelerator, Any], Accelerated]
    recorded: tuple[str, ...]
    """Methods from tensors to tensors that never wait for the device: on a CUDA device each is recorded once and replayed."""


KINDS: dict[type, Kind] = {
    PPOLearner: Kind("PPO", Accelerator.ppo, ("make_batch", "learn")),
    APPOLearner: Kind("APPO", Accelerator.ppo, ("make_batch", "learn")),
    PopulationLearner: Kind("a population of PPO", Accelerator.population, ()),
    DQNLearner: Kind("DQN", Accelerator.dqn, ()),
    RLPDLearner: Kind("RLPD", Accelerator.none, ()),
    SACLearner: Kind("SAC", Accelerator.replay, ("step",)),
    TD3Learner: Kind("TD3", Accelerator.replay, ("step",)),
    DDPGLearner: Kind("DDPG", Accelerator.replay, ("step",)),
}
"""By the exact type of the learner."""


def _record(learner: Any, known: type) -> None:
    """Replace those methods of `learner` by CUDA graphs. A graph keeps the settings of its recording; a changed one ends it."""
    graphs, change = [], learner.set
    for name in KINDS[known].recorded:
        text = f"{type(learner).__name__}.{name}"
        graphs.append(CudaGraphed(getattr(learner, name), generators=learner.generators, name=text))
        setattr(learner, name, graphs[-1])

    def change_and_forget(name: str, value: object) -> None:
        change(name, value)
        for graph in graphs:
            graph.forget()

    learner.set = change_and_forget


def _epochs(learner: PPOLearner, kernels: NumbaActorCritic | TritonActorCritic) -> Callable[[Batch], Numbers]:
    """`PPOLearner.epochs` by kernels, which read the rows of a minibatch by index. A batch with rows that do not count, which
    is one of very few decisions, is for the plain code."""
    plain = learner.epochs

    def epochs(batch: Batch) -> Numbers:
        if ACTIVE in batch and not bool(batch[ACTIVE].all()):
            return plain(batch)
        c, num_rows = learner.config, len(batch["advantage"])
        size = num_rows // c.num_minibatches
        # minibatches have equal sizes: the few rows that are left of an order wait for the next pass
        orders = learner.shuffle.orders(c.num_epochs, num_rows)[:, : size * c.num_minibatches]
        numbers = kernels.passes(batch, orders, size=size, optimiser=learner.optimiser, config=c)
        return dict(zip(numba_ppo.METRICS, numbers.unbind(1), strict=True))

    return epochs


def _q_step(learner: DQNLearner, kernels: NumbaQ, target: Tensor) -> Callable[[Batch], tuple[Mapping[str, Tensor], Tensor]]:
    """`DQNLearner.step` by kernels."""

    def step(batch: Batch) -> tuple[Mapping[str, Tensor], Tensor]:
        numbers, errors = kernels.step(batch, target, optimiser=learner.optimiser, config=learner.config)
        return dict(zip(numba_dqn.METRICS, numbers.unbind(0), strict=True)), errors

    return step


def _plain(learner: Learner, reason: str) -> Accelerated:
    return Accelerated(learner, False, f"compiled: off, because {reason}")


def _device(learner: Any) -> torch.device:
    return torch.device(learner.device)


def _alone(learner: Any) -> bool:
    """Whether no other rank has a part of the batch. Kernels and graphs cannot wait for other ranks."""
    return bool(learner.collective.world_size == 1)


def _why_other_adam(optimiser: object) -> str:
    return "" if type(optimiser) is Adam else f"the optimiser is {type(optimiser).__name__}, and kernels are for Adam"


def _first(kernel: str, kernels: object) -> str:
    """A note on compile time, if the kernels have not been compiled on this machine before."""
    cold = isinstance(kernels, NumbaActorCritic | NumbaQ) and not numba_ppo.is_cached(kernel)
    return " (the first update compiles, some 20 s once on a machine)" if cold else ""

"""Which kernels stand in for what: asked once when a run is wired, answered in words that the run tells.

`agents/` and `nets/` are written plainly, and know of no kernel. An `Accelerator` is handed a learner or a network that was
just made, and lets kernels stand in for methods of that one object, if it is exactly what they were written for: types are
compared exactly, methods, losses and layers one by one (`stock.py`). What is a user's own, patched or edited runs as it is
written, and the run says why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from runnel.agents.appo import APPOLearner
from runnel.agents.ddpg import DDPGLearner
from runnel.agents.dqn import DQNLearner
from runnel.agents.ppo import Numbers, PPOLearner
from runnel.agents.ppo_population import PopulationLearner
from runnel.agents.sac import SACLearner
from runnel.agents.td3 import TD3Learner
from runnel.core.contracts.learning import Learner
from runnel.core.records import Batch
from runnel.kernels import stock
from runnel.kernels.graphs import CudaGraphed
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
"""Steps of a run that pay for compiling kernels for its network; a shorter run is over sooner without."""
NAMES: dict[type, str] = {
    PPOLearner: "PPO",
    APPOLearner: "APPO",
    PopulationLearner: "a population of PPO",
    DQNLearner: "DQN",
    SACLearner: "SAC",
    TD3Learner: "TD3",
    DDPGLearner: "DDPG",
}
"""Learners that some kernel knows, the stock ones exactly."""
OFF = "off with --compiled off"


@dataclass(frozen=True)
class Accelerated:
    """A learner with what stands in for its methods, and what to tell of it."""

    learner: Learner
    on: bool
    """Whether something stands in for the update."""
    text: str
    """For the run's first lines and its report; empty where there is nothing to tell."""


@dataclass(frozen=True)
class Accelerator:
    """`mode` is the setting `compiled`: auto takes what pays and fits, on compiles at once, off leaves everything as it is
    written. `num_steps` are the environment steps that the run plans."""

    mode: Mode = "auto"
    num_steps: int = 0

    def compiles(self, device: torch.device) -> bool:
        """Whether kernels that have to be compiled first are wanted."""
        return self.mode == "on" or (self.mode == "auto" and self.num_steps >= COMPILE_FROM.get(device.type, 1 << 62))

    def acts(self, net: Acts) -> Acts:
        """What acts for `net`: `net` itself with `off`, or where its code is not the stock one."""
        return net if self.mode == "off" else fast_acts(net, self.compiles)

    def learner(self, learner: Learner) -> Accelerated:
        """Let kernels stand in for methods of `learner`, which was just made; the learner to use may be another object."""
        known = next((kind for kind in type(learner).__mro__ if kind in NAMES), None)
        if known is None:
            return Accelerated(learner, False, "")
        if self.mode == "off":
            return Accelerated(learner, False, "compiled: off, as you said (--compiled off)")
        if type(learner) is not known:
            reason = f"{type(learner).__name__} is your own learner, and kernels are for {known.__name__} as it stands"
            return self._recorded_anyway(learner, known, reason)
        return _MAKERS[known](self, learner)

    def _recorded_anyway(self, learner: Learner, known: type, reason: str) -> Accelerated:
        """A learner of a user's own. Its update may be recorded in a CUDA graph, but only where the user asks for it: a graph
        repeats what was launched, and would repeat a choice that the update makes in Python."""
        if known not in GRAPHS or _device(learner).type != "cuda" or not _alone(learner):
            return Accelerated(learner, False, f"compiled: off, because {reason}")
        if self.mode != "on":
            hint = "--compiled on records it in CUDA graphs, which is right if it takes no decision in Python"
            return Accelerated(learner, False, f"compiled: off, because {reason}; {hint}")
        _record(learner, known)
        return Accelerated(learner, True, f"compiled: CUDA graphs, {type(learner).__name__}; {OFF}")

    # ------------------------------------------------------------------------------------------------------------ forms
    def ppo(self, learner: PPOLearner) -> Accelerated:
        """Kernels for the passes over a batch and for values; on a CUDA device inside of graphs."""
        name, device = NAMES[type(learner)], _device(learner)
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
        """Kernels for the learner's network with their name, or why there are none."""
        module = triton_ppo if device.type == "cuda" else numba_ppo
        reason = self._why_not_yet(device) or module.why_not(learner.net) or _why_other_adam(learner.optimiser)
        reason = reason or stock.why_changed(stock.PPO, [learner, learner.net, learner.net.body, learner.net.head])
        vector = None if reason else flat_view(list(learner.net.parameters()))
        if vector is None:
            return None, "", reason or "parameters do not lie one after the other"
        if device.type == "cuda":
            return TritonActorCritic(learner.net, vector), "triton", ""
        return NumbaActorCritic(learner.net, vector), "numba", ""

    def population(self, learner: PopulationLearner) -> Accelerated:
        """All members at once on a CUDA device; else each by itself."""
        first, c = learner.net.members[0], learner.config
        device = _device(learner.learners[0])
        reason = self._why_not_yet(device) or triton_ppo.why_not(first)
        if c.target_kl is None and not c.normalise_reward and device.type == "cuda" and not reason:
            places = (*stock.UPDATES[PopulationLearner], *stock.UPDATES[PPOLearner], *stock.PPO)
            if not stock.why_changed(places, [learner, *learner.learners, *learner.net.members]):
                joined = TritonPopulationLearner(c, learner.net, seed=learner.seed, device=learner.device)
                _record(joined, PPOLearner)
                return Accelerated(joined, True, f"compiled: CUDA graphs, triton, {NAMES[PopulationLearner]}; {OFF}")
        if any(type(member) is not PPOLearner for member in learner.learners):
            return _plain(learner, "its members are learners of your own")
        each = [self.ppo(member) for member in learner.learners]
        return Accelerated(learner, each[0].on, f"{each[0].text}, for each member")

    def dqn(self, learner: DQNLearner) -> Accelerated:
        """One call for the gradient and the step."""
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
        """The whole update in one graph on a CUDA device; on the CPU with gradients written out."""
        name = NAMES[type(learner)]
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

    def _why_not_yet(self, device: torch.device) -> str:
        if self.compiles(device):
            return ""
        least = COMPILE_FROM.get(device.type)
        if least is None:
            return f"there are no kernels for {device.type}"
        return f"{self.num_steps:,} steps are over before compiling pays (from {least:,}; --compiled on does it at once)"


_MAKERS: dict[type, Callable[[Accelerator, Any], Accelerated]] = {
    PPOLearner: Accelerator.ppo,
    APPOLearner: Accelerator.ppo,
    PopulationLearner: Accelerator.population,
    DQNLearner: Accelerator.dqn,
    SACLearner: Accelerator.replay,
    TD3Learner: Accelerator.replay,
    DDPGLearner: Accelerator.replay,
}
GRAPHS: dict[type, tuple[str, ...]] = {
    PPOLearner: ("make_batch", "learn"),
    APPOLearner: ("make_batch", "learn"),
    SACLearner: ("step",),
    TD3Learner: ("step",),
    DDPGLearner: ("step",),
}
"""Methods that work on the device alone, from tensors to tensors: on a CUDA device each is recorded once and replayed."""


def _record(learner: Any, known: type) -> None:
    """Let recorded graphs stand in for those methods of `learner`."""
    for name in GRAPHS[known]:
        text = f"{type(learner).__name__}.{name}"
        setattr(learner, name, CudaGraphed(getattr(learner, name), generators=learner.generators, name=text))


def _epochs(learner: PPOLearner, kernels: NumbaActorCritic | TritonActorCritic) -> Callable[[Batch], Numbers]:
    """`PPOLearner.epochs` by kernels, which pick their rows themselves."""

    def epochs(batch: Batch) -> Numbers:
        c, num_rows = learner.config, len(batch["advantage"])
        numbers = kernels.passes(
            batch,
            learner.shuffle.orders(c.num_epochs, num_rows),
            size=num_rows // c.num_minibatches,
            optimiser=learner.optimiser,
            max_norm=c.max_grad_norm,
            clip=c.clip_range,
            dual_clip=c.dual_clip,
            value_clip=c.value_clip,
            value_coef=c.value_coef,
            entropy_coef=c.entropy_coef,
        )
        return dict(zip(numba_ppo.METRICS, numbers.unbind(1), strict=True))

    return epochs


def _q_step(learner: DQNLearner, kernels: NumbaQ, target: Tensor) -> Callable[[Batch], tuple[Mapping[str, Tensor], Tensor]]:
    """`DQNLearner.step` by kernels."""

    def step(batch: Batch) -> tuple[Mapping[str, Tensor], Tensor]:
        c = learner.config
        numbers, errors = kernels.step(
            batch, target, double=c.double, huber=c.huber, optimiser=learner.optimiser, max_norm=c.max_grad_norm
        )
        return dict(zip(numba_dqn.METRICS, numbers.unbind(0), strict=True)), errors

    return step


def _plain(learner: Learner, reason: str) -> Accelerated:
    return Accelerated(learner, False, f"compiled: off, because {reason}")


def _device(learner: Any) -> torch.device:
    return torch.device(learner.device)


def _alone(learner: Any) -> bool:
    """Whether no other rank has a part of the batch: kernels and graphs wait for nobody."""
    return bool(learner.collective.world_size == 1)


def _why_other_adam(optimiser: object) -> str:
    return "" if type(optimiser) is Adam else f"the optimiser is {type(optimiser).__name__}, and kernels are for Adam"


def _first(kernel: str, kernels: object) -> str:
    """What the first update takes, where kernels have not been compiled on this machine before."""
    cold = isinstance(kernels, NumbaActorCritic | NumbaQ) and not numba_ppo.is_cached(kernel)
    return " (the first update compiles, some 20 s once on a machine)" if cold else ""

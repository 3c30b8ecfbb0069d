"""Torch modules, and the inferencer that serves them."""

from typing import TYPE_CHECKING

from runnel.core.lazy import lazy_names

if TYPE_CHECKING:
    from runnel.nets.actor_critic import ActorCritic as ActorCritic, build_body as build_body
    from runnel.nets.central import (
        StateCritic as StateCritic,
        ValueNorm as ValueNorm,
        central_body as central_body,
        lone_actor as lone_actor,
    )
    from runnel.nets.continuous import (
        CategoricalActor as CategoricalActor,
        DeterministicActor as DeterministicActor,
        QEnsemble as QEnsemble,
        SquashedGaussianActor as SquashedGaussianActor,
        TeamGaussianActor as TeamGaussianActor,
        VNet as VNet,
    )
    from runnel.nets.cost_critics import CostCritics as CostCritics
    from runnel.nets.inferencer import TorchInferencer as TorchInferencer
    from runnel.nets.layers import ReturnScale as ReturnScale, RunningMeanStd as RunningMeanStd
    from runnel.nets.mat import TeamTransformer as TeamTransformer
    from runnel.nets.mixing import MonotoneMixer as MonotoneMixer, TeamQNet as TeamQNet
    from runnel.nets.nfsp import AveragePolicy as AveragePolicy, NFSPNet as NFSPNet
    from runnel.nets.optim import Adam as Adam
    from runnel.nets.options import OptionNet as OptionNet
    from runnel.nets.population import Population as Population
    from runnel.nets.q_nets import QNet as QNet
    from runnel.nets.step_q import StepQNet as StepQNet
    from runnel.nets.stream import StreamBody as StreamBody, StreamQNet as StreamQNet
    from runnel.nets.team import JointPolicy as JointPolicy, TeamPolicy as TeamPolicy
    from runnel.nets.trees import TreeBody as TreeBody
else:
    __all__, __getattr__, __dir__ = lazy_names(__name__, __file__)

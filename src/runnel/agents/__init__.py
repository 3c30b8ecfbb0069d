"""One file per classical algorithm: its Config and its Learner."""

from typing import TYPE_CHECKING

from runnel.core.lazy import lazy_names

if TYPE_CHECKING:
    from runnel.agents.a2c import A2CConfig as A2CConfig, A2CLearner as A2CLearner
    from runnel.agents.appo import APPOConfig as APPOConfig, APPOLearner as APPOLearner
    from runnel.agents.base import merge_segments as merge_segments
    from runnel.agents.bc import BCConfig as BCConfig, BCLearner as BCLearner
    from runnel.agents.central import CentralConfig as CentralConfig, CentralCritic as CentralCritic
    from runnel.agents.cip import CIPConfig as CIPConfig, CIPLearner as CIPLearner
    from runnel.agents.coma import COMAConfig as COMAConfig, COMALearner as COMALearner, extra_size as extra_size
    from runnel.agents.ddpg import DDPGConfig as DDPGConfig, DDPGLearner as DDPGLearner
    from runnel.agents.dqn import DQNConfig as DQNConfig, DQNLearner as DQNLearner
    from runnel.agents.drm import DrMConfig as DrMConfig, DrMLearner as DrMLearner
    from runnel.agents.exchange import ExchangeConfig as ExchangeConfig
    from runnel.agents.gbrl import GBRLConfig as GBRLConfig, GBRLLearner as GBRLLearner
    from runnel.agents.group_ppo import GroupPPOLearner as GroupPPOLearner
    from runnel.agents.happo import HAPPOConfig as HAPPOConfig, HAPPOLearner as HAPPOLearner
    from runnel.agents.impala import IMPALAConfig as IMPALAConfig, IMPALALearner as IMPALALearner
    from runnel.agents.league import LeagueLearner as LeagueLearner, PoolConfig as PoolConfig
    from runnel.agents.joint import Joint as Joint, join as join
    from runnel.agents.mappo import MAPPOConfig as MAPPOConfig, MAPPOLearner as MAPPOLearner
    from runnel.agents.masac import MASACConfig as MASACConfig, MASACLearner as MASACLearner
    from runnel.agents.mat import MATConfig as MATConfig, MATLearner as MATLearner
    from runnel.agents.mex import MEXConfig as MEXConfig, MEXLearner as MEXLearner
    from runnel.agents.nfsp import NFSPConfig as NFSPConfig, NFSPLearner as NFSPLearner
    from runnel.agents.ppo import PPOConfig as PPOConfig, PPOLearner as PPOLearner
    from runnel.agents.ppo_lagrangian import LagrangianConfig as LagrangianConfig, PPOLagrangianLearner as PPOLagrangianLearner
    from runnel.agents.ppo_population import PopulationLearner as PopulationLearner
    from runnel.agents.qmix import QMIXConfig as QMIXConfig, QMIXLearner as QMIXLearner
    from runnel.agents.rlpd import RLPDConfig as RLPDConfig, RLPDLearner as RLPDLearner
    from runnel.agents.sac import SACConfig as SACConfig, SACLearner as SACLearner
    from runnel.agents.soap import SOAPLearner as SOAPLearner
    from runnel.agents.sqirl import SQIRLConfig as SQIRLConfig, SQIRLLearner as SQIRLLearner
    from runnel.agents.stream import (
        StreamACConfig as StreamACConfig,
        StreamACLearner as StreamACLearner,
        StreamQConfig as StreamQConfig,
        StreamQLearner as StreamQLearner,
    )
    from runnel.agents.td3 import TD3Config as TD3Config, TD3Learner as TD3Learner
    from runnel.agents.team import TeamLearner as TeamLearner
else:
    __all__, __getattr__, __dir__ = lazy_names(__name__, __file__)

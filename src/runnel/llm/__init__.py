"""Language models: tokenizer, engine, tasks, rewards, sampler, learner and algorithms."""

from typing import TYPE_CHECKING

from runnel.core.lazy import lazy_names

if TYPE_CHECKING:
    from runnel.core.contracts.chat import (
        ChatEnv as ChatEnv,
        ChatGame as ChatGame,
        Tool as Tool,
        ToolFailure as ToolFailure,
    )
    from runnel.llm.algorithms.a_lol import ALoL as ALoL, ALoLConfig as ALoLConfig
    from runnel.llm.algorithms.aipo import AIPO as AIPO, AIPOConfig as AIPOConfig
    from runnel.llm.algorithms.cispo import CISPO as CISPO, CISPOConfig as CISPOConfig
    from runnel.llm.algorithms.covariance import Covariance as Covariance, CovarianceConfig as CovarianceConfig
    from runnel.llm.algorithms.contrast import (
        CPO as CPO,
        ORPO as ORPO,
        RRHF as RRHF,
        CPOConfig as CPOConfig,
        ORPOConfig as ORPOConfig,
        RRHFConfig as RRHFConfig,
        SimPO as SimPO,
        SimPOConfig as SimPOConfig,
    )
    from runnel.llm.algorithms.dapo import DAPO as DAPO, DAPOConfig as DAPOConfig
    from runnel.llm.algorithms.decoupled import DecoupledConfig as DecoupledConfig, DecoupledPPO as DecoupledPPO
    from runnel.llm.algorithms.dpo import DPO as DPO, DPOConfig as DPOConfig, OnlineDPO as OnlineDPO
    from runnel.llm.algorithms.gigpo import GiGPO as GiGPO, GiGPOConfig as GiGPOConfig
    from runnel.llm.algorithms.grpo import GRPO as GRPO, GRPOConfig as GRPOConfig
    from runnel.llm.algorithms.grpo_roc import GRPORoC as GRPORoC, GRPORoCConfig as GRPORoCConfig
    from runnel.llm.algorithms.gspo import GSPO as GSPO, GSPOConfig as GSPOConfig
    from runnel.llm.algorithms.loop import LOOP as LOOP, LOOPConfig as LOOPConfig
    from runnel.llm.algorithms.opmd import OPMD as OPMD, OPMDConfig as OPMDConfig
    from runnel.llm.algorithms.oreal import OREAL as OREAL, OREALConfig as OREALConfig
    from runnel.llm.algorithms.p3o import P3O as P3O, P3OConfig as P3OConfig
    from runnel.llm.algorithms.pacs import PACS as PACS, PACSConfig as PACSConfig
    from runnel.llm.algorithms.ppo import TokenPPO as TokenPPO, TokenPPOConfig as TokenPPOConfig
    from runnel.llm.algorithms.ppo_max import PPOMax as PPOMax, PPOMaxConfig as PPOMaxConfig
    from runnel.llm.algorithms.raft import RAFT as RAFT, RAFTConfig as RAFTConfig
    from runnel.llm.algorithms.regression import (
        INPO as INPO,
        REBEL as REBEL,
        INPOConfig as INPOConfig,
        REBELConfig as REBELConfig,
    )
    from runnel.llm.algorithms.reinforce import (
        RLOO as RLOO,
        ReMax as ReMax,
        Reinforce as Reinforce,
        ReinforceConfig as ReinforceConfig,
    )
    from runnel.llm.algorithms.reinforce_plus_plus import (
        ReinforcePlusPlus as ReinforcePlusPlus,
        ReinforcePPConfig as ReinforcePPConfig,
    )
    from runnel.llm.algorithms.reward_model import RewardModelling as RewardModelling
    from runnel.llm.algorithms.sft import SupervisedFineTuning as SupervisedFineTuning
    from runnel.llm.algorithms.rl_plus import RLPlus as RLPlus, RLPlusConfig as RLPlusConfig
    from runnel.llm.algorithms.spa import SPA as SPA, SPAConfig as SPAConfig
    from runnel.llm.algorithms.topr import TOPR as TOPR, TOPRConfig as TOPRConfig
    from runnel.llm.algorithms.turn_ppo import TurnPPO as TurnPPO, TurnPPOConfig as TurnPPOConfig
    from runnel.llm.chat.config import TalkConfig as TalkConfig
    from runnel.llm.chat.mcp import mcp_tools as mcp_tools
    from runnel.llm.chat.session import Chat as Chat
    from runnel.llm.chat.tools import tools_of as tools_of
    from runnel.llm.engines.choose import EngineConfig as EngineConfig
    from runnel.llm.learning.learner import TokenLearner as TokenLearner, TokenLearnerConfig as TokenLearnerConfig
    from runnel.llm.model.causal_lm import ModelConfig as ModelConfig
    from runnel.llm.policy import ChatPolicy as ChatPolicy
    from runnel.llm.rewards.components import RewardComponent as RewardComponent
    from runnel.llm.sampling.pairs import PairWriter as PairWriter
    from runnel.llm.tasks import (
        DataConfig as DataConfig,
        DifficultyConfig as DifficultyConfig,
        NewTasksConfig as NewTasksConfig,
    )
    from runnel.llm.tasks import SourcesConfig as SourcesConfig
else:
    __all__, __getattr__, __dir__ = lazy_names(__name__, __file__)

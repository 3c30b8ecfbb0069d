"""runnel: reinforcement learning on one dataflow of workers and streams.

    import runnel as rl

    run = rl.train("ppo", env="CartPole-v1", total_steps=50_000)
    policy = rl.load(run.path)
    action = policy.act(obs)

Everything a recipe, an example or your own file needs is a name of this module.
"""

from runnel.agents.a2c import A2CConfig, A2CLearner
from runnel.agents.appo import APPOConfig, APPOLearner
from runnel.agents.base import merge_segments
from runnel.agents.ddpg import DDPGConfig, DDPGLearner
from runnel.agents.dqn import DQNConfig, DQNLearner
from runnel.agents.impala import IMPALAConfig, IMPALALearner
from runnel.agents.ppo import PPOConfig, PPOLearner
from runnel.agents.ppo_population import PopulationLearner
from runnel.agents.sac import SACConfig, SACLearner
from runnel.agents.td3 import TD3Config, TD3Learner
from runnel.core.config import refuse_unused, to_data
from runnel.core.contracts.evaluation import AgentRoute, EvalResult, Evaluation, Policy
from runnel.core.contracts.inference import Inferencer, Reply, Request
from runnel.core.contracts.learning import Collective, Learner, SingleProcess, Update
from runnel.core.contracts.params import ParamSet
from runnel.core.contracts.samples import Sampler
from runnel.core.contracts.tasks import Task, TaskSource
from runnel.core.errors import (
    CheckpointError,
    ClusterLost,
    ConfigError,
    DataError,
    DeadlockError,
    NonFiniteError,
    RunnelError,
    WorkerFailure,
)
from runnel.core.records import Batch, FieldSpec, Segment, StreamSpec
from runnel.core.resuming import OnResume, may_change, stays
from runnel.core.rng import make_rng, make_seed
from runnel.core.spaces import ActionSpec, ArraySpec, EnvSpec
from runnel.core.trajectories import trajectory_stream
from runnel.data.replay import ReplayConfig, ReplayStore, replay_stream
from runnel.envs.registry import make_env
from runnel.envs.sampler import VecEnvSampler
from runnel.envs.vector.config import VectorConfig
from runnel.eval.aggregates import aggregate
from runnel.eval.compare import compare
from runnel.eval.profiles import performance_profile
from runnel.eval.runner import EnvEvaluation
from runnel.eval.statistics import summarise
from runnel.flow.staleness import AdmissionRule, LagRule, ReplayRatioRule, StalenessConfig
from runnel.flow.workers.trainer import Phase
from runnel.graphs.env_config import EnvConfig, ReplayEnvConfig
from runnel.graphs.env_task import EnvTask
from runnel.graphs.experiment import ActorSpec, BufferSpec, EvaluationSpec, Experiment, InferenceStream
from runnel.graphs.on_policy import on_policy_graph
from runnel.graphs.pairs import PairConfig, pair_graph
from runnel.graphs.population import population_graph
from runnel.graphs.prompt_task import PromptTask
from runnel.graphs.prompts import PromptConfig, prompt_graph
from runnel.graphs.record_config import RecordConfig
from runnel.graphs.replay import replay_graph
from runnel.graphs.run_config import CheckpointConfig, EvalConfig, PlacementConfig, RunConfig
from runnel.graphs.unused import unused_by_learner, unused_on_data
from runnel.graphs.user_objects import make_network, resolve
from runnel.llm.algorithms.aipo import AIPO, AIPOConfig
from runnel.llm.algorithms.dapo import DAPO, DAPOConfig
from runnel.llm.algorithms.decoupled import DecoupledConfig, DecoupledPPO
from runnel.llm.algorithms.dpo import DPO, DPOConfig, OnlineDPO
from runnel.llm.algorithms.grpo import GRPO, DrGRPO, GRPOConfig
from runnel.llm.algorithms.gspo import GSPO, GSPOConfig
from runnel.llm.algorithms.ppo import TokenPPO, TokenPPOConfig
from runnel.llm.algorithms.reinforce import RLOO, Reinforce, ReinforceConfig, ReMax
from runnel.llm.algorithms.reward_model import RewardModelling
from runnel.llm.algorithms.sft import SupervisedFineTuning
from runnel.llm.engines.choose import EngineConfig
from runnel.llm.learning.learner import TokenLearner, TokenLearnerConfig
from runnel.llm.model.causal_lm import ModelConfig
from runnel.llm.rewards.components import RewardComponent
from runnel.llm.sampling.pairs import PairWriter
from runnel.llm.tasks import DataConfig, DifficultyConfig, Example, TextTask
from runnel.losses.base import Loss
from runnel.nets.actor_critic import ActorCritic, build_body
from runnel.nets.continuous import CategoricalActor, DeterministicActor, QEnsemble, SquashedGaussianActor
from runnel.nets.inferencer import TorchInferencer
from runnel.nets.layers import NetConfig
from runnel.nets.optim import Adam
from runnel.nets.population import Population
from runnel.nets.q_nets import QNet
from runnel.ops.returns import gae
from runnel.report.write import write_report
from runnel.run.api import Run, export, load, record, resume, train, train_config
from runnel.run.evaluating import evaluate
from runnel.run.events import Event
from runnel.run.pipeline import PipelineConfig, Stage, learner_settings, run_pipeline
from runnel.testing.envs import check_env
from runnel.testing.rewards import check_reward

__version__ = "0.1.0"

__all__ = [
    "AIPO",
    "DAPO",
    "DPO",
    "GRPO",
    "GSPO",
    "RLOO",
    "A2CConfig",
    "A2CLearner",
    "AIPOConfig",
    "APPOConfig",
    "APPOLearner",
    "ActionSpec",
    "ActorCritic",
    "ActorSpec",
    "Adam",
    "AdmissionRule",
    "AgentRoute",
    "ArraySpec",
    "Batch",
    "BufferSpec",
    "CategoricalActor",
    "CheckpointConfig",
    "CheckpointError",
    "ClusterLost",
    "Collective",
    "ConfigError",
    "DAPOConfig",
    "DDPGConfig",
    "DDPGLearner",
    "DPOConfig",
    "DQNConfig",
    "DQNLearner",
    "DataConfig",
    "DataError",
    "DeadlockError",
    "DecoupledConfig",
    "DecoupledPPO",
    "DeterministicActor",
    "DifficultyConfig",
    "DrGRPO",
    "EngineConfig",
    "EnvConfig",
    "EnvEvaluation",
    "EnvSpec",
    "EnvTask",
    "EvalConfig",
    "EvalResult",
    "Evaluation",
    "EvaluationSpec",
    "Event",
    "Example",
    "Experiment",
    "FieldSpec",
    "GRPOConfig",
    "GSPOConfig",
    "IMPALAConfig",
    "IMPALALearner",
    "InferenceStream",
    "Inferencer",
    "LagRule",
    "Learner",
    "Loss",
    "ModelConfig",
    "NetConfig",
    "NonFiniteError",
    "OnResume",
    "OnlineDPO",
    "PPOConfig",
    "PPOLearner",
    "PairConfig",
    "PairWriter",
    "ParamSet",
    "Phase",
    "PipelineConfig",
    "PlacementConfig",
    "Policy",
    "Population",
    "PopulationLearner",
    "PromptConfig",
    "PromptTask",
    "QEnsemble",
    "QNet",
    "ReMax",
    "RecordConfig",
    "Reinforce",
    "ReinforceConfig",
    "ReplayConfig",
    "ReplayEnvConfig",
    "ReplayRatioRule",
    "ReplayStore",
    "Reply",
    "Request",
    "RewardComponent",
    "RewardModelling",
    "Run",
    "RunConfig",
    "RunnelError",
    "SACConfig",
    "SACLearner",
    "Sampler",
    "Segment",
    "SingleProcess",
    "SquashedGaussianActor",
    "Stage",
    "StalenessConfig",
    "StreamSpec",
    "SupervisedFineTuning",
    "TD3Config",
    "TD3Learner",
    "Task",
    "TaskSource",
    "TextTask",
    "TokenLearner",
    "TokenLearnerConfig",
    "TokenPPO",
    "TokenPPOConfig",
    "TorchInferencer",
    "Update",
    "VecEnvSampler",
    "VectorConfig",
    "WorkerFailure",
    "__version__",
    "aggregate",
    "build_body",
    "check_env",
    "check_reward",
    "compare",
    "evaluate",
    "export",
    "gae",
    "learner_settings",
    "load",
    "make_env",
    "make_network",
    "make_rng",
    "make_seed",
    "may_change",
    "merge_segments",
    "on_policy_graph",
    "pair_graph",
    "performance_profile",
    "population_graph",
    "prompt_graph",
    "record",
    "refuse_unused",
    "replay_graph",
    "replay_stream",
    "resolve",
    "resume",
    "run_pipeline",
    "stays",
    "summarise",
    "to_data",
    "train",
    "train_config",
    "trajectory_stream",
    "unused_by_learner",
    "unused_on_data",
    "write_report",
]

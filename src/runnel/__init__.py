"""runnel: reinforcement learning on one dataflow of workers and streams.

    import runnel as rl

    run = rl.train("ppo", env="CartPole-v1", total_steps=50_000)
    policy = rl.load(run.path)
    action = policy.act(obs)

Everything a recipe, an example or your own file needs is a name of this module.
"""

from runnel.agents.dqn import DQNConfig, DQNLearner
from runnel.agents.ppo import PPOConfig, PPOLearner
from runnel.core.batch import Batch
from runnel.core.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    DeadlockError,
    NonFiniteError,
    RunnelError,
    WorkerFailure,
)
from runnel.core.protocols import (
    AgentRoute,
    Collective,
    EvalResult,
    Evaluation,
    Inferencer,
    Learner,
    OneProcess,
    ParamSet,
    Policy,
    Reply,
    Request,
    Sampler,
    Task,
    TaskSource,
    Update,
)
from runnel.core.records import FieldSpec, Segment, StreamSpec
from runnel.core.rng import make_rng, make_seed
from runnel.core.spaces import ActionSpec, ArraySpec, EnvSpec
from runnel.core.trajectories import trajectory_stream
from runnel.data.replay import ReplayConfig, ReplayStore, replay_stream
from runnel.envs.registry import make_env
from runnel.envs.sampler import VecEnvSampler
from runnel.eval.runner import EnvEvaluation, evaluate
from runnel.eval.statistics import summarise
from runnel.flow.staleness import LagPolicy, RatioPolicy, StalenessConfig, StalenessPolicy
from runnel.flow.workers.trainer import Phase
from runnel.llm.algorithms import GRPO, GRPOConfig
from runnel.llm.learner import TokenLearner, TokenLearnerConfig
from runnel.llm.tasks import Example, TextTask
from runnel.nets.actor_critic import ActorCritic
from runnel.nets.causal_lm import ModelConfig
from runnel.nets.inferencer import TorchInferencer
from runnel.nets.mlp import MLPConfig
from runnel.nets.q_nets import QNet
from runnel.run.api import Run, load, resume, train, train_config
from runnel.run.env_task import EnvTask
from runnel.run.experiment import (
    ActorSpec,
    BufferSpec,
    CheckpointConfig,
    EvalConfig,
    EvaluationSpec,
    Experiment,
    InferenceStream,
    PlacementConfig,
    RunConfig,
)
from runnel.run.prompt_task import PromptTask
from runnel.run.registry import resolve
from runnel.testing.envs import check_env
from runnel.testing.rewards import check_reward
from runnel.track.report import write_report

__version__ = "0.1.0"

__all__ = [
    "GRPO",
    "ActionSpec",
    "ActorCritic",
    "ActorSpec",
    "AgentRoute",
    "ArraySpec",
    "Batch",
    "BufferSpec",
    "CheckpointConfig",
    "CheckpointError",
    "Collective",
    "ConfigError",
    "DQNConfig",
    "DQNLearner",
    "DataError",
    "DeadlockError",
    "EnvEvaluation",
    "EnvSpec",
    "EnvTask",
    "EvalConfig",
    "EvalResult",
    "Evaluation",
    "EvaluationSpec",
    "Example",
    "Experiment",
    "FieldSpec",
    "GRPOConfig",
    "InferenceStream",
    "Inferencer",
    "LagPolicy",
    "Learner",
    "MLPConfig",
    "ModelConfig",
    "NonFiniteError",
    "OneProcess",
    "PPOConfig",
    "PPOLearner",
    "ParamSet",
    "Phase",
    "PlacementConfig",
    "Policy",
    "PromptTask",
    "QNet",
    "RatioPolicy",
    "ReplayConfig",
    "ReplayStore",
    "Reply",
    "Request",
    "Run",
    "RunConfig",
    "RunnelError",
    "Sampler",
    "Segment",
    "StalenessConfig",
    "StalenessPolicy",
    "StreamSpec",
    "Task",
    "TaskSource",
    "TextTask",
    "TokenLearner",
    "TokenLearnerConfig",
    "TorchInferencer",
    "Update",
    "VecEnvSampler",
    "WorkerFailure",
    "__version__",
    "check_env",
    "check_reward",
    "evaluate",
    "load",
    "make_env",
    "make_rng",
    "make_seed",
    "replay_stream",
    "resolve",
    "resume",
    "summarise",
    "train",
    "train_config",
    "trajectory_stream",
    "write_report",
]

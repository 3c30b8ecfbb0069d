"""runnel: reinforcement learning on one dataflow of workers and streams.

    import runnel as rl

    run = rl.train("ppo", env="CartPole-v1", total_steps=50_000)
    policy = rl.load(run.path)
    action = policy.act(obs)

These are the names that most programs need. What a recipe or a file of your own builds on is in the subpackages, such as
`rl.agents.PPOLearner`, `rl.nets.ActorCritic` or `rl.ops.gae` (docs/reference/python.md has the list).
"""

from typing import TYPE_CHECKING

from runnel.core.lazy import lazy_names

__version__ = "0.1.0"

if TYPE_CHECKING:
    from runnel import (
        agents as agents,
        core as core,
        data as data,
        envs as envs,
        eval as eval,
        flow as flow,
        games as games,
        graphs as graphs,
        llm as llm,
        losses as losses,
        nets as nets,
        ops as ops,
        report as report,
        run as run,
        testing as testing,
    )
    from runnel.core.records import Batch as Batch
    from runnel.core.contracts.chat import Turn as Turn
    from runnel.core.contracts.learning import Collective as Collective, Learner as Learner, Update as Update
    from runnel.core.errors import ConfigError as ConfigError, RunnelError as RunnelError
    from runnel.data.store import ReplayConfig as ReplayConfig
    from runnel.envs.registry import make_env as make_env
    from runnel.flow.staleness import StalenessConfig as StalenessConfig
    from runnel.graphs.env_config import EnvConfig as EnvConfig, ReplayEnvConfig as ReplayEnvConfig
    from runnel.graphs.env_task import EnvTask as EnvTask
    from runnel.graphs.experiment import Experiment as Experiment
    from runnel.graphs.on_policy import on_policy_graph as on_policy_graph
    from runnel.graphs.pairs import PairConfig as PairConfig, pair_graph as pair_graph
    from runnel.graphs.prompt_task import PromptTask as PromptTask
    from runnel.graphs.prompts import PromptConfig as PromptConfig, prompt_graph as prompt_graph
    from runnel.graphs.replay import replay_graph as replay_graph
    from runnel.graphs.run_config import (
        CheckpointConfig as CheckpointConfig,
        EvalConfig as EvalConfig,
        PlacementConfig as PlacementConfig,
        RunConfig as RunConfig,
    )
    from runnel.graphs.user_objects import make_network as make_network
    from runnel.llm.chat.tools import tool as tool
    from runnel.llm.tasks.text import Example as Example, TextTask as TextTask
    from runnel.nets.layers import NetConfig as NetConfig
    from runnel.run.api import (
        Run as Run,
        export as export,
        load as load,
        record as record,
        resume as resume,
        train as train,
        train_config as train_config,
    )
    from runnel.run.data_sets import record_data as record_data
    from runnel.run.evaluating import evaluate as evaluate
    from runnel.run.events import Event as Event
    from runnel.run.matching import match as match
    from runnel.run.new_tasks import add_tasks as add_tasks
    from runnel.run.pipeline import Stage as Stage, run_pipeline as run_pipeline
    from runnel.run.live_settings import change_settings as change_settings
    from runnel.testing.chat import check_chat as check_chat
    from runnel.testing.envs import check_env as check_env
    from runnel.testing.rewards import check_reward as check_reward
else:
    __all__, __getattr__, __dir__ = lazy_names(__name__, __file__)

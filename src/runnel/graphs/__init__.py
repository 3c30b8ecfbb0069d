"""Experiments: configs, tasks, and the graphs of workers and streams that recipes build."""

from typing import TYPE_CHECKING

from runnel.core.lazy import lazy_names

if TYPE_CHECKING:
    from runnel.graphs.experiment import (
        ActorSpec as ActorSpec,
        EvaluationSpec as EvaluationSpec,
        InferenceStream as InferenceStream,
        TrainerSpec as TrainerSpec,
        TransformSpec as TransformSpec,
    )
    from runnel.graphs.joint_config import JointConfig as JointConfig, TeamReplayConfig as TeamReplayConfig
    from runnel.graphs.joint_task import JointTask as JointTask
    from runnel.graphs.league import league_graph as league_graph, league_task as league_task
    from runnel.graphs.mix import share_of as share_of
    from runnel.graphs.offline import (
        DataEnvConfig as DataEnvConfig,
        ImitationConfig as ImitationConfig,
        beside_data as beside_data,
        imitation_graph as imitation_graph,
    )
    from runnel.graphs.population import population_graph as population_graph
    from runnel.graphs.rated import labelled_graph as labelled_graph, scored_graph as scored_graph
    from runnel.graphs.record_config import RecordConfig as RecordConfig
    from runnel.graphs.team import team_graph as team_graph
    from runnel.graphs.team_config import TeamConfig as TeamConfig, check_in_step as check_in_step
    from runnel.graphs.team_task import TeamTask as TeamTask
    from runnel.graphs.unused import unused_by_learner as unused_by_learner, unused_on_data as unused_on_data
    from runnel.graphs.user_objects import resolve as resolve
else:
    __all__, __getattr__, __dir__ = lazy_names(__name__, __file__)

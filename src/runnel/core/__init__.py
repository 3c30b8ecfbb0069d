"""Shared types of runnel: batches, records, contracts, configuration, randomness, errors.

Every other package may import `core`, and `core` imports no other package of runnel. Two packages that must not import each
other (for example `flow` and `agents`) share a protocol here.
"""

from typing import TYPE_CHECKING

from runnel.core.lazy import lazy_names

if TYPE_CHECKING:
    from runnel.core.bounds import bounded as bounded, scheduled as scheduled
    from runnel.core.calls.pool import CallOutcome as CallOutcome, CallPool as CallPool, CallSpec as CallSpec
    from runnel.core.config import refuse_unused as refuse_unused, to_data as to_data
    from runnel.core.contracts.evaluation import (
        AgentRoute as AgentRoute,
        EvalResult as EvalResult,
        Evaluation as Evaluation,
        Policy as Policy,
        SampleRoute as SampleRoute,
    )
    from runnel.core.contracts.inference import Inferencer as Inferencer, Reply as Reply, Request as Request
    from runnel.core.contracts.learning import SingleProcess as SingleProcess
    from runnel.core.contracts.params import ParamSet as ParamSet
    from runnel.core.contracts.samples import Sampler as Sampler
    from runnel.core.contracts.tasks import Curriculum as Curriculum, Task as Task, TaskSource as TaskSource, Draw as Draw
    from runnel.core.errors import (
        CheckpointError as CheckpointError,
        ClusterLost as ClusterLost,
        DataError as DataError,
        DeadlockError as DeadlockError,
        NonFiniteError as NonFiniteError,
        WorkerFailure as WorkerFailure,
    )
    from runnel.core.live_settings import LiveConfig as LiveConfig
    from runnel.core.records import FieldSpec as FieldSpec, Segment as Segment, StreamSpec as StreamSpec
    from runnel.core.resuming import OnResume as OnResume, live as live, may_change as may_change, stays as stays
    from runnel.core.rng import make_rng as make_rng, make_seed as make_seed
    from runnel.core.routes import team_routes as team_routes
    from runnel.core.spaces import (
        ActionSpec as ActionSpec,
        ArraySpec as ArraySpec,
        Channels as Channels,
        EnvSpec as EnvSpec,
        TeamSpec as TeamSpec,
    )
    from runnel.core.trajectories import trajectory_stream as trajectory_stream
else:
    __all__, __getattr__, __dir__ = lazy_names(__name__, __file__)

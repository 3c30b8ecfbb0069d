"""Streams, staleness, transports and workers. Knows nothing of environments, agents or language models."""

from typing import TYPE_CHECKING

from runnel.core.lazy import lazy_names

if TYPE_CHECKING:
    from runnel.flow.inference.function import FunctionInferencer as FunctionInferencer
    from runnel.flow.staleness import AdmissionRule as AdmissionRule, LagRule as LagRule, ReplayRatioRule as ReplayRatioRule
    from runnel.flow.workers.trainer import Budget as Budget, Phase as Phase
    from runnel.flow.workers.transform import StatelessTransform as StatelessTransform
else:
    __all__, __getattr__, __dir__ = lazy_names(__name__, __file__)

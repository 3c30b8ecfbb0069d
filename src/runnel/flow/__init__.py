"""Streams, staleness, transports and workers. Knows nothing of environments, agents or language models."""

from typing import TYPE_CHECKING

from runnel.core.lazy import lazy_names

if TYPE_CHECKING:
    from runnel.flow.staleness import AdmissionRule as AdmissionRule, LagRule as LagRule, ReplayRatioRule as ReplayRatioRule
    from runnel.flow.workers.trainer import Phase as Phase
else:
    __all__, __getattr__, __dir__ = lazy_names(__name__, __file__)

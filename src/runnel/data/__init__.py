"""Replay memory and data sets."""

from typing import TYPE_CHECKING

from runnel.core.lazy import lazy_names

if TYPE_CHECKING:
    from runnel.core.state_columns import state_columns as state_columns
    from runnel.data.dataset import Dataset as Dataset, DatasetWriter as DatasetWriter, Source as Source
    from runnel.data.offline import OfflineSampler as OfflineSampler, imitation_stream as imitation_stream
    from runnel.data.replay import ReplayStore as ReplayStore, replay_stream as replay_stream
else:
    __all__, __getattr__, __dir__ = lazy_names(__name__, __file__)

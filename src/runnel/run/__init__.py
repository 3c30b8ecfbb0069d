"""A run: its experiment, the wiring that assembles it, launchers, checkpoints and the run folder."""

from typing import TYPE_CHECKING

from runnel.core.lazy import lazy_names

if TYPE_CHECKING:
    from runnel.run.league import (
        LeagueMembers as LeagueMembers,
        frozen_policies as frozen_policies,
        league_members as league_members,
    )
    from runnel.run.pipeline import PipelineConfig as PipelineConfig, learner_settings as learner_settings
    from runnel.run.stored import pin_teams as pin_teams, stored_params as stored_params
else:
    __all__, __getattr__, __dir__ = lazy_names(__name__, __file__)

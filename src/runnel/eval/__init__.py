"""Evaluation: playing episodes with a policy, and honest statistics over them."""

from typing import TYPE_CHECKING

from runnel.core.lazy import lazy_names

if TYPE_CHECKING:
    from runnel.eval.aggregates import aggregate as aggregate
    from runnel.eval.comparisons import compare as compare
    from runnel.eval.matches import Match as Match, seats_of as seats_of
    from runnel.eval.payoffs import Payoffs as Payoffs
    from runnel.eval.profiles import performance_profile as performance_profile
    from runnel.eval.ratings import Ratings as Ratings, TeamGame as TeamGame, fit_elo as fit_elo, rate_skill as rate_skill
    from runnel.eval.runner import EnvEvaluation as EnvEvaluation
    from runnel.eval.statistics import summarise as summarise
else:
    __all__, __getattr__, __dir__ = lazy_names(__name__, __file__)

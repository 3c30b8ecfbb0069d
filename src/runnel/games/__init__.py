"""Small games of OpenSpiel, solved exactly: best responses, exploitability of what was trained, and PSRO."""

from typing import TYPE_CHECKING

from runnel.core.lazy import lazy_names

if TYPE_CHECKING:
    from runnel.games.trained import Exploitability as Exploitability, exploitability as exploitability
    from runnel.games.oracles import PSROStep as PSROStep, psro as psro
    from runnel.games.small import BestResponse as BestResponse, SmallGame as SmallGame, Strategy as Strategy
else:
    __all__, __getattr__, __dir__ = lazy_names(__name__, __file__)

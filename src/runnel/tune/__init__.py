"""Search for good settings of a recipe: by trials (Optuna), or by population based training on live runs.

from runnel import tune

study = tune.search("ppo", space={"ppo.lr": "log(1e-4, 1e-2)"}, options={"trials": 10}, total_steps=20_000)
print(study.best["params"], study.best["command"])
"""

from typing import TYPE_CHECKING

from runnel.core.lazy import lazy_names

if TYPE_CHECKING:
    from runnel.tune.contexts import (
        ContextChooser as ContextChooser,
        Trained as Trained,
        train_on_contexts as train_on_contexts,
    )
    from runnel.tune.settings import TuneConfig as TuneConfig
    from runnel.tune.space import Param as Param
    from runnel.tune.study import Study as Study, resume as resume, search as search
else:
    __all__, __getattr__, __dir__ = lazy_names(__name__, __file__)

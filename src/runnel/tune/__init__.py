"""Search for good settings of a recipe: by trials (Optuna), or by population based training on live runs.

from runnel import tune

study = tune.search("ppo", space={"ppo.lr": "log(1e-4, 1e-2)"}, options={"trials": 10}, total_steps=20_000)
print(study.best["params"], study.best["command"])
"""

from runnel.tune.settings import TuneConfig
from runnel.tune.space import Param
from runnel.tune.study import Study, resume, search

__all__ = ["Param", "Study", "TuneConfig", "resume", "search"]

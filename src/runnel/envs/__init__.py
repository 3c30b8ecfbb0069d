"""Everything that steps: environments by name, vectors of them, and the sampler that plays them."""

from typing import TYPE_CHECKING

from runnel.core.lazy import lazy_names

if TYPE_CHECKING:
    from runnel.envs.channels import ChannelsConfig as ChannelsConfig
    from runnel.envs.device.team import TeamWorld as TeamWorld
    from runnel.envs.registry import make_team_env as make_team_env
    from runnel.envs.sampler import VecEnvSampler as VecEnvSampler
    from runnel.envs.started import StartedEnv as StartedEnv
    from runnel.envs.vector.config import VectorConfig as VectorConfig
else:
    __all__, __getattr__, __dir__ = lazy_names(__name__, __file__)

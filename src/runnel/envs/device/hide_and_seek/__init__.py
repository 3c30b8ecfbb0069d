"""Hide-and-seek as a tensor world: `world.py` is the environment, `layouts.py` where everything begins, `physics.py` how it
moves, `play.py` what agents do to things, `sight.py` who sees whom, `views.py` what they observe, `stages.py` how it went."""

from runnel.envs.device.hide_and_seek.world import HideAndSeek

__all__ = ["HideAndSeek"]

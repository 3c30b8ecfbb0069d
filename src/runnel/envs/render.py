"""Shows each step of an environment as an rgb frame, for videos.

An environment that renders is made with `render_mode="rgb_array"`. If it does not render but its observations are images
(`atari:`, `MinAtar/`, your own), the frame is what the policy sees. For a tensor environment, its Gymnasium twin is played.
`sketch.py` draws Gymnasium's classic control tasks where pygame is not installed.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from runnel.core.errors import ConfigError, DataError
from runnel.core.state import Settings
from runnel.envs.registry import Target, env_name, evaluation_kwargs, is_tensor_env, make_env
from runnel.envs.sketch import sketch_of
from runnel.envs.spaces import Action, Info, Obs

if TYPE_CHECKING:
    import gymnasium as gym

Frame = NDArray[np.uint8]
DEFAULT_FPS = 30
_SMALLEST = 256
"""A frame whose longer side is less than half of this is enlarged by a whole factor."""
_PALETTE = np.array(
    [(70, 140, 220), (230, 120, 60), (90, 180, 110), (220, 200, 80), (160, 100, 200), (210, 90, 120), (120, 200, 200)],
    np.uint8,
)


class RenderedEnv:
    """A Gymnasium environment of `target`, as evaluations play it; `frame` draws its present state."""

    def __init__(self, target: Target, *, kwargs: Settings | None = None, frame_stack: int = 0) -> None:
        os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
        self.name = env_name(target)
        self.env, self._renders = _make(target, evaluation_kwargs(target, kwargs), frame_stack)
        self._obs: Obs = None
        self._picture = self.env.render if self._renders else self._own_picture()

    @property
    def fps(self) -> float:
        """Frames per second, from the metadata of the environment."""
        return float((getattr(self.env, "metadata", None) or {}).get("render_fps") or DEFAULT_FPS)

    def reset(self, seed: int) -> tuple[Obs, Info]:
        self._obs, info = self.env.reset(seed=seed)
        return self._obs, info

    def step(self, action: Action) -> tuple[Obs, float, bool, bool, Info]:
        self._obs, reward, terminated, truncated, info = self.env.step(action)
        return self._obs, float(reward), bool(terminated), bool(truncated), info

    def frame(self) -> Frame:
        """A picture of the present state. uint8 `[H, W, 3]`"""
        found = self._picture()
        found = found[-1] if isinstance(found, list) and found else found
        frame = None if found is None else np.ascontiguousarray(found)
        if frame is None or frame.ndim != 3 or frame.shape[2] != 3 or frame.dtype != np.uint8:
            what = "nothing" if frame is None else f"{frame.dtype} {list(frame.shape)}"
            raise ConfigError("env", self.name, f"its render() gives {what}; return uint8 [H, W, 3] for render_mode rgb_array")
        return np.repeat(np.repeat(frame, factor := _factor(frame), axis=0), factor, axis=1)

    def _own_picture(self) -> Callable[[], Frame]:
        sketch = sketch_of(self.env)
        if sketch is not None:
            return sketch
        picture = _picture_of(self.env)
        return lambda: picture(self._obs)

    def close(self) -> None:
        self.env.close()


def check_renders(target: Target, *, kwargs: Settings | None, frame_stack: int, field: str, value: object) -> None:
    """Draw one frame. If that fails, raise a `ConfigError` of `field` with the fix."""
    env = None
    try:
        env = RenderedEnv(target, kwargs=kwargs, frame_stack=frame_stack)
        env.reset(0)
        env.frame()
    except ConfigError as error:
        raise ConfigError(field, value, f"{env_name(target)} cannot be recorded: {error.fix}") from error
    except Exception as error:  # an environment's own code: whatever it raises, it cannot be recorded
        text = f"{env_name(target)} cannot be drawn here ({type(error).__name__}: {error}){_advice(env)}; or use 0"
        raise ConfigError(field, value, text) from error
    finally:
        if env is not None:
            env.close()


def _advice(env: RenderedEnv | None) -> str:
    if "mujoco" not in (type(env.env.unwrapped).__module__ if env is not None else " ".join(sys.modules)):
        return ""
    return "; on a machine without a screen set MUJOCO_GL=egl or MUJOCO_GL=osmesa, and install that library"


def _make(target: Target, options: Settings, frame_stack: int) -> tuple[gym.Env, bool]:
    """The environment, and whether its own `render` gives the frames."""
    if is_tensor_env(target):
        target = _twin(str(target))
    if not (isinstance(target, str) and target.startswith(("atari:", "MinAtar/", "envpool:"))):
        try:
            env = make_env(target, kwargs={**options, "render_mode": "rgb_array"}, frame_stack=frame_stack)
            return env, sketch_of(env) is None or importlib.util.find_spec("pygame") is not None
        except (TypeError, DataError) as error:  # of a library, or of the user's own constructor
            if "render_mode" not in str(error):
                raise
    return make_env(target, kwargs=options, frame_stack=frame_stack), False


def _twin(target: str) -> str:
    """Id of the Gymnasium environment with the same dynamics as a tensor environment."""
    import gymnasium as gym

    name = target.partition(":")[2]
    if name not in gym.registry:
        raise ConfigError("env", target, "a tensor environment without a Gymnasium twin draws nothing; use 0 videos")
    return name


def _picture_of(env: gym.Env) -> Callable[[Obs], Frame]:
    """A function that draws an observation of `env`, which must be an image."""
    from runnel.envs.minatar import MinAtar
    from runnel.envs.wrappers import FrameStack, frame_reader

    if isinstance(env.unwrapped, MinAtar):
        layers = env.unwrapped.observation_space.shape[0]
        return lambda obs: _board(np.asarray(obs)[-layers:])
    if isinstance(env, FrameStack):  # [C, H, W] whatever its shape
        return _drawn(env.channels, np.asarray)
    try:
        (channels, _, _), read = frame_reader(env.observation_space)
    except ConfigError:
        fix = "take render_mode='rgb_array' in its constructor and return uint8 [H, W, 3] from render(), or use 0"
        raise ConfigError("env", env, fix) from None
    return _drawn(channels, read)


def _drawn(channels: int, read: Callable[[Obs], Frame]) -> Callable[[Obs], Frame]:
    """A function that draws the newest frame of a stack `[C, H, W]`, in colour if a frame has three channels."""
    if channels == 3:
        return lambda obs: np.ascontiguousarray(np.moveaxis(read(obs)[-3:], 0, -1))
    return lambda obs: np.repeat(read(obs)[-1][:, :, None], 3, axis=2)


def _board(layers: Frame) -> Frame:
    """A picture of a board `[C, H, W]` with one layer for each kind of object, in a colour of its own."""
    picture = np.full((*layers.shape[1:], 3), 24, np.uint8)
    for number, layer in enumerate(layers):
        picture[layer > 0] = _PALETTE[number % len(_PALETTE)]
    return picture


def _factor(frame: Frame) -> int:
    return max(1, _SMALLEST // int(max(frame.shape)))

"""Wrappers that change what an image looks like: frames side by side, channels first.

Networks take images as uint8 `[channels, height, width]`. A wrapped environment works anywhere (evaluation, a loaded policy);
a `SerialVector` takes a `FrameStack` off and stacks in its own memory, so that each frame is written there once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from runnel.core.errors import ConfigError
from runnel.core.spaces import channel_axis
from runnel.envs.spaces import obs_leaves

Frame = NDArray[np.uint8]


def frame_reader(space: Any) -> tuple[tuple[int, int, int], Callable[[Any], Frame]]:
    """The shape `[C, H, W]` of an image space, and a function from an observation to that shape (a view), which refuses what is
    not in the space.

    `[H, W]` gets one channel; `[H, W, C]` is turned.
    """
    shape = tuple(getattr(space, "shape", None) or ())
    if not isinstance(space, spaces.Box) or space.dtype != np.uint8 or len(shape) not in (2, 3):
        raise ConfigError("vector.frame_stack", space, "only images (a Box of uint8, 2 or 3 dimensions) have frames; use 0")
    checked = obs_leaves(space)[0].checked
    if len(shape) == 2:
        return (1, *shape), lambda obs: checked(obs)[None]
    axis = channel_axis(shape)
    if axis is None:
        fix = "its shape does not tell where its channels are; give frames as [channels, height, width] that differ, or use 0"
        raise ConfigError("vector.frame_stack", space, fix)
    if axis == 2:
        height, width, channels = shape
        return (channels, height, width), lambda obs: np.moveaxis(checked(obs), -1, 0)
    return shape, checked


class FrameStack(gym.Wrapper):  # type: ignore[misc]
    """The `num_frames` newest frames, oldest first: uint8 `[num_frames * C, H, W]`. An episode begins with its first frame
    repeated."""

    def __init__(self, env: Any, num_frames: int) -> None:
        super().__init__(env)
        self.num_frames = num_frames
        (channels, height, width), self.read = frame_reader(env.observation_space)
        self.channels = channels
        self._stack = np.zeros((num_frames * channels, height, width), np.uint8)
        self.observation_space = spaces.Box(0, 255, self._stack.shape, np.uint8)

    def reset(self, **kwargs: Any) -> tuple[Frame, dict[str, Any]]:
        obs, info = self.env.reset(**kwargs)
        self._stack.reshape(self.num_frames, self.channels, *self._stack.shape[1:])[:] = self.read(obs)
        return self._stack.copy(), info

    def step(self, action: Any) -> tuple[Frame, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        self._stack[: -self.channels] = self._stack[self.channels :]
        self._stack[-self.channels :] = self.read(obs)
        return self._stack.copy(), reward, terminated, truncated, info


def stacked_frames(env: Any) -> int:
    """How many frames lie side by side in what `env` shows, as its wrappers say (ours, or Gymnasium's); 0: it does not stack.

    The shape does not tell a stack from a colour image. A wrapper outside of the stack must leave the shape as it is.
    """
    shape, at = getattr(env.observation_space, "shape", None), env
    while isinstance(at, gym.Wrapper) and at.observation_space.shape == shape:
        if isinstance(at, FrameStack):
            return at.num_frames
        if isinstance(at, gym.wrappers.FrameStackObservation):
            return int(at.stack_size)
        at = at.env
    return 0


class OneOf(gym.Env):  # type: ignore[misc]
    """A Gymnasium vector environment of size 1 as a plain environment, for evaluation, probing and loaded policies."""

    def __init__(self, vec: Any) -> None:
        self._vec = vec
        self.observation_space, self.action_space = vec.single_observation_space, vec.single_action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        obs, info = self._vec.reset(seed=seed, options=options)
        return first_row(obs), _plain_info(info)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        actions = batch_of_one(self.action_space, action)
        obs, reward, terminated, truncated, info = self._vec.step(actions)
        obs = info.pop("final_obs", obs) if terminated[0] or truncated[0] else obs
        return first_row(obs), float(reward[0]), bool(terminated[0]), bool(truncated[0]), _plain_info(info)

    def close(self) -> None:
        self._vec.close()


def first_row(obs: Any) -> Any:
    """The only row of a batch of one, nested as it is."""
    if isinstance(obs, dict):
        return {k: first_row(x) for k, x in obs.items()}
    return tuple(first_row(x) for x in obs) if isinstance(obs, tuple) else obs[0]


def batch_of_one(space: Any, action: Any) -> Any:
    """An action as a vector environment of size 1 takes it."""
    if isinstance(action, dict):
        return {k: batch_of_one(space[k], x) for k, x in action.items()}
    if isinstance(action, tuple):
        return tuple(batch_of_one(s, x) for s, x in zip(space.spaces, action, strict=True))
    return np.asarray(action, dtype=space.dtype)[None]


def _plain_info(info: dict[str, Any]) -> dict[str, Any]:
    """The info of one environment: what a vector says of row 0."""
    return {k: x[0] for k, x in info.items() if isinstance(x, np.ndarray) and len(x) and not k.startswith("_")}


class StackWriter:
    """Keeps stacks `[B, k * C, H, W]` in order in fixed memory.

    A ring would save moving k - 1 frames of a row, but then the order of channels would turn with time, or the window would
    wander through memory; networks need the first, samplers rely on the second being fixed. One row moves by one memmove
    (21 kB for four 84 x 84 frames, about a microsecond, against a millisecond for the emulator), and the new frame is written
    once, straight from the environment.
    """

    def __init__(self, stack: FrameStack, buffer: Frame, final: Frame) -> None:
        self._read, self._channels, self._k = stack.read, stack.channels, stack.num_frames
        self._rows, self._finals = ([row.reshape(-1) for row in x] for x in (buffer, final))
        self._newest, self._final_newest = buffer[:, -self._channels :], final[:, -self._channels :]
        self._all = buffer.reshape(len(buffer), self._k, self._channels, *buffer.shape[2:])
        self._frame = self._rows[0].size // self._k

    def first(self, row: int, obs: Any) -> None:
        """The first observation of an episode."""
        self._all[row] = self._read(obs)

    def next(self, row: int, obs: Any) -> None:
        """One more frame."""
        flat = self._rows[row]
        flat[: -self._frame] = flat[self._frame :]
        self._newest[row] = self._read(obs)

    def last(self, index: int, row: int, obs: Any) -> None:
        """The frame that ended the episode of `row`, into final observation `index`."""
        self._finals[index][: -self._frame] = self._rows[row][self._frame :]
        self._final_newest[index] = self._read(obs)

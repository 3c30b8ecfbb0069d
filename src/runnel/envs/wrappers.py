"""Stacks of frames with channels first, and a vector of one environment as a plain one.

Networks take images as uint8 `[channels, height, width]`. A wrapped environment works anywhere (evaluation, a loaded policy).
A `SerialVector` removes a `FrameStack` and stacks in its own memory (`StackWriter`), so that each frame is written once.
"""

from __future__ import annotations

from collections.abc import Callable

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from runnel.core.errors import ConfigError
from runnel.core.spaces import channel_axis
from runnel.envs.spaces import Action, Info, Obs, obs_leaves

Frame = NDArray[np.uint8]


def frame_reader(space: gym.Space) -> tuple[tuple[int, int, int], Callable[[Obs], Frame]]:
    """The shape `[C, H, W]` of an image space, and a function from an observation to a view of that shape.

    `[H, W]` gets one channel, `[H, W, C]` is transposed. The function refuses an observation that is not in the space.
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
    """The `num_frames` newest frames, oldest first: uint8 `[num_frames * C, H, W]`.

    At the beginning of an episode, all frames are its first one.
    """

    def __init__(self, env: gym.Env, num_frames: int) -> None:
        super().__init__(env)
        self.num_frames = num_frames
        (channels, height, width), self.read = frame_reader(env.observation_space)
        self.channels = channels
        self._stack = np.zeros((num_frames * channels, height, width), np.uint8)
        self.observation_space = spaces.Box(0, 255, self._stack.shape, np.uint8)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Frame, Info]:
        obs, info = self.env.reset(seed=seed, options=options)
        self._stack.reshape(self.num_frames, self.channels, *self._stack.shape[1:])[:] = self.read(obs)
        return self._stack.copy(), info

    def step(self, action: Action) -> tuple[Frame, float, bool, bool, Info]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        self._stack[: -self.channels] = self._stack[self.channels :]
        self._stack[-self.channels :] = self.read(obs)
        return self._stack.copy(), reward, terminated, truncated, info


def stacked_frames(env: gym.Env) -> int:
    """Number of frames in an observation of `env`; 0 if it does not stack.

    The shape cannot tell a stack from a colour image, so this looks for the stacking wrapper, ours or Gymnasium's. A wrapper
    outside of it must keep the shape.
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

    def __init__(self, vec: gym.vector.VectorEnv) -> None:
        self._vec = vec
        self.observation_space, self.action_space = vec.single_observation_space, vec.single_action_space

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Obs, Info]:
        super().reset(seed=seed)
        obs, info = self._vec.reset(seed=seed, options=options)
        return first_row(obs), plain_info(info)

    def step(self, action: Action) -> tuple[Obs, float, bool, bool, Info]:
        actions = batch_of_one(self.action_space, action)
        obs, reward, terminated, truncated, info = self._vec.step(actions)
        if terminated[0] or truncated[0]:  # a vector that resets itself at once shows the next episode, and this one apart
            obs, info = info.get("final_obs", obs), info.get("final_info", info)
        return first_row(obs), float(reward[0]), bool(terminated[0]), bool(truncated[0]), plain_info(info)

    def close(self) -> None:
        self._vec.close()


def first_row(obs: Obs) -> Obs:
    """The row of a batch of one, nested like the batch."""
    if isinstance(obs, dict):
        return {k: first_row(x) for k, x in obs.items()}
    return tuple(first_row(x) for x in obs) if isinstance(obs, tuple) else obs[0]


def batch_of_one(space: gym.Space, action: Action) -> Action:
    """`action` as a vector environment of size 1 takes it."""
    if isinstance(action, dict):
        return {k: batch_of_one(space[k], x) for k, x in action.items()}
    if isinstance(action, tuple):
        return tuple(batch_of_one(s, x) for s, x in zip(space.spaces, action, strict=True))
    return np.asarray(action, dtype=space.dtype)[None]


def plain_info(info: Info) -> Info:
    """The info of row 0 of a vector. A vector's key `_name` marks the rows that have `name`; one environment has no use for
    it."""
    found = {k: x[0] for k, x in info.items() if isinstance(x, np.ndarray) and len(x) and not k.startswith("_")}
    return found | {k: plain_info(x) for k, x in info.items() if isinstance(x, dict)}


class StackWriter:
    """Keeps stacks of frames `[B, k * C, H, W]` in fixed memory, oldest frame first.

    A ring buffer would not have to move k - 1 frames at each step. But its order of channels would rotate, which a network
    cannot take, or its window would move through memory, which a sampler relies on being fixed. One row moves by one memmove
    (21 kB for four 84 x 84 frames: about a microsecond, where the emulator takes a millisecond). The new frame is written
    once, directly from the environment.
    """

    def __init__(self, stack: FrameStack, buffer: Frame, final: Frame) -> None:
        self._read, self._channels, self._k = stack.read, stack.channels, stack.num_frames
        self._rows, self._finals = ([row.reshape(-1) for row in x] for x in (buffer, final))
        self._newest, self._final_newest = buffer[:, -self._channels :], final[:, -self._channels :]
        self._all = buffer.reshape(len(buffer), self._k, self._channels, *buffer.shape[2:])
        self._frame = self._rows[0].size // self._k

    def first(self, row: int, obs: Obs) -> None:
        """Write the first observation of an episode."""
        self._all[row] = self._read(obs)

    def next(self, row: int, obs: Obs) -> None:
        """Write one more frame."""
        flat = self._rows[row]  # flat, so that numpy moves the frames as one block
        flat[: -self._frame] = flat[self._frame :]
        self._newest[row] = self._read(obs)

    def last(self, index: int, row: int, obs: Obs) -> None:
        """Write the stack that ended the episode of `row` as final observation `index`."""
        self._finals[index][: -self._frame] = self._rows[row][self._frame :]
        self._final_newest[index] = self._read(obs)

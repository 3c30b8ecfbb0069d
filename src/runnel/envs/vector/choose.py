"""The back end where `auto` leaves it open: a function of the config, of what the environment is, and of the number of cores.

Nothing is measured here. A stopwatch gives another answer on another day, and a vector of Gymnasium's own is another
implementation with random numbers of its own: the same command and seed would then give other numbers. `serial` and `processes`
play the same episodes bit for bit, and so does any number of processes or threads, so only between those may the cores decide.
`runnel bench --backends` measures (`measure.py`), and says which setting to give.
"""

from __future__ import annotations

from dataclasses import dataclass

from runnel.core.errors import ConfigError
from runnel.envs.vector.config import VectorConfig
from runnel.envs.vector.source import EnvSource

STEP_US = {
    "gymnasium.envs.classic_control": 10,
    "gymnasium.envs.toy_text": 15,
    "minatar": 20,
    "gymnasium.envs.box2d": 100,
    "gymnasium.envs.mujoco": 150,
    "ale_py": 500,
}
"""Microseconds of a step by package, as they were measured once on one core of 2.8 GHz. They are only right within a factor of
three; what follows from them is the same everywhere."""
WAKE_US, WAKE_EACH_US = 100, 20
"""Microseconds that a step in other processes takes beside the steps themselves: waking and waiting, and more for each."""
WORTH = 1.5
"""Processes are used where they should be this many times as fast."""
OWN_VECTORS = {"CartPole-v0": 64, "CartPole-v1": 64}
"""Environments whose vector in Gymnasium is used from this many on: 64 step there eight times as fast as in series."""


@dataclass(frozen=True)
class Choice:
    """A resolved `VectorConfig` (never `auto`), and the line that says why."""

    config: VectorConfig
    text: str


def choose(source: EnvSource, num_envs: int, config: VectorConfig, *, cores: int, plain: bool = False) -> Choice:
    """`config` without `auto`. `plain`: the simplest that can step `source`, however slow."""
    found, why = _choose(source, num_envs, config, cores=cores, plain=plain)
    for name in ("num_workers", "threads", "step_timeout_s"):
        if (value := getattr(config, name)) and not getattr(found, name):
            raise ConfigError(
                f"vector.{name}", value, f"{source.name} is stepped by {found.backend}, which has no use for it; use 0"
            )
    found.check()
    return Choice(found, f"{source.name} x {num_envs}: {why}")


def _choose(source: EnvSource, num_envs: int, config: VectorConfig, *, cores: int, plain: bool) -> tuple[VectorConfig, str]:
    if config.backend != "auto":
        return config, f"{config.backend}, as configured"
    if source.kind != "plain":
        threads = config.threads or min(num_envs, cores)
        if source.kind == "envpool":
            return config.resolve("envpool", threads=threads), f"EnvPool, threads: {threads}"
        return config.resolve("gymnasium", threads=threads), f"ale-py's own vector, threads: {threads}"
    if source.needs_vec:
        return config.resolve("gymnasium"), "the environment's own vector"
    if config.step_timeout_s or config.num_workers:
        workers = min(num_envs, config.num_workers or cores)
        field = "step_timeout_s" if config.step_timeout_s else "num_workers"
        return config.resolve("processes", num_workers=workers), f"processes: {workers}, as vector.{field} needs them"
    if plain:
        return config.resolve("serial"), "serial, the plainest"
    if _own_vector_pays(source, num_envs, config):
        why = f"gymnasium, its own vector, as from {OWN_VECTORS[source.name]} on; its random numbers are others than serial's"
        return config.resolve("gymnasium"), why
    return _serial_or_processes(source, num_envs, config, cores=cores)


def _own_vector_pays(source: EnvSource, num_envs: int, config: VectorConfig) -> bool:
    """Arguments of the constructor may mean other things to the vector, and it knows nothing of frames and restarts."""
    able = config.on_error == "stop" and not config.frame_stack and not source.kwargs
    return able and source.make_vec is not None and num_envs >= OWN_VECTORS.get(source.name, num_envs + 1)


def _serial_or_processes(source: EnvSource, num_envs: int, config: VectorConfig, *, cores: int) -> tuple[VectorConfig, str]:
    """By the table. The episodes are the same, so it does not matter to what is learned that the number of cores decides."""
    step_us, workers = STEP_US.get(source.family), min(num_envs, cores)
    if step_us is None:
        return config.resolve("serial"), "serial, as nothing is known of its cost (`runnel bench --backends` measures it)"
    about = f"a step takes about {step_us} us"
    wake_us = WAKE_US + WAKE_EACH_US * workers
    shared_us = wake_us + -(-num_envs // workers) * step_us
    if workers > 1 and shared_us * WORTH < num_envs * step_us:
        return config.resolve("processes", num_workers=workers), f"processes: {workers}, as {about} on each of {cores} cores"
    few = "there is one core" if cores == 1 and num_envs > 1 else f"{about}, waking processes {wake_us}"
    return config.resolve("serial"), f"serial, as {few}"

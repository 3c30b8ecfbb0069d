"""Resolves the back end `auto`, from the config, the environment and the number of cores.

Nothing is measured here. A measurement differs from day to day, and Gymnasium's own vector is another implementation with other
random numbers, so the same command and seed would give other results. `serial` and `processes` play the same episodes bit for
bit, with any number of processes or threads, so only between those may the number of cores decide. `runnel bench --backends`
measures (`measure.py`) and recommends a setting.
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
"""Microseconds of a step by package, measured once on a core of 2.8 GHz. They are right within a factor of three. The table is
the same on every machine, so that every machine makes the same choice."""
WAKE_US, WAKE_EACH_US = 100, 20
"""Overhead in microseconds of a step in other processes (waking and waiting), and the addition for each process."""
WORTH = 1.5
"""Processes are used if by the table they are this many times as fast."""
OWN_VECTORS = {"CartPole-v0": 64, "CartPole-v1": 64}
"""Gymnasium's own vector of these environments is used from this number on: 64 CartPoles step eight times as fast in it."""


@dataclass(frozen=True)
class Choice:
    """A resolved `VectorConfig` (never `auto`), and one line with the reason."""

    config: VectorConfig
    text: str


def choose(source: EnvSource, num_envs: int, config: VectorConfig, *, cores: int, plain: bool = False) -> Choice:
    """Resolve `auto` in `config`. `plain`: choose the simplest back end that can step `source`, however slow it is."""
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
    """Whether Gymnasium's own vector is used. Not with arguments, which may mean something else to it, nor with stacks or
    restarts."""
    able = config.on_error == "stop" and not config.frame_stack and not source.kwargs
    return able and source.make_vec is not None and num_envs >= OWN_VECTORS.get(source.name, num_envs + 1)


def _serial_or_processes(source: EnvSource, num_envs: int, config: VectorConfig, *, cores: int) -> tuple[VectorConfig, str]:
    """Choose by the table. Both play the same episodes, so the number of cores does not change what is learned."""
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

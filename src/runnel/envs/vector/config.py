"""Settings of how a vector of environments is stepped. They change the speed; only `gymnasium` and `envpool` change
episodes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, get_args

from runnel.core.bounds import bounded, check_bounds
from runnel.core.errors import ConfigError
from runnel.core.resuming import OnResume, may_change, stays

Backend = Literal["auto", "serial", "gymnasium", "processes", "envpool"]
BACKENDS = get_args(Backend)


@dataclass(frozen=True)
class VectorConfig:
    """The back end of a vector, its processes and threads, and what happens when an environment breaks."""

    on_resume: ClassVar[OnResume] = may_change(
        "num_workers", "threads", "on_error", "step_timeout_s", then="the environments start that way"
    ) | stays("backend", "frame_stack", why="the state of the environments in the checkpoint is of that kind")

    backend: Backend = "auto"
    """What steps the environments: `serial` (one after the other), `gymnasium` (the environment's own vector), `processes`
    (over shared memory), `envpool`, or `auto`: by what is known of the environment and the number of cores, never by a
    measurement, so that a seed means the same every time."""
    num_workers: int = bounded(0, at_least=0)
    """Processes that share the environments of one vector (`processes`); 0: one a core."""
    threads: int = bounded(0, at_least=0)
    """Threads of a compiled back end (`envpool`, Atari); 0: one a core."""
    on_error: Literal["stop", "restart"] = "stop"
    """When an environment raises, dies or hangs: stop the run, or make it anew, cut its episode and count it."""
    step_timeout_s: float = bounded(0.0, at_least=0)
    """A step that takes longer than this counts as hung (`processes` only); 0: wait for ever."""
    frame_stack: int = bounded(0, at_least=0)
    """How many frames an image observation shows, oldest first; 0: as the environment gives it."""

    def check(self) -> None:
        """Refuse what cannot work."""
        if self.backend not in BACKENDS:
            raise ConfigError("vector.backend", self.backend, f"use one of {', '.join(BACKENDS)}")
        if self.on_error not in ("stop", "restart"):
            raise ConfigError("vector.on_error", self.on_error, "use stop or restart")
        check_bounds(self, "vector.")
        if self.num_workers and self.backend not in ("auto", "processes"):
            raise ConfigError("vector.num_workers", self.num_workers, f"{self.backend} has no processes; use backend=processes")
        if self.threads and self.backend in ("serial", "processes"):
            raise ConfigError("vector.threads", self.threads, f"{self.backend} has no threads; use num_workers and processes")
        if self.step_timeout_s and self.backend not in ("auto", "processes"):
            raise ConfigError(
                "vector.step_timeout_s", self.step_timeout_s, "only another process can be stopped; use backend=processes"
            )
        if self.on_error == "restart" and self.backend in ("gymnasium", "envpool"):
            raise ConfigError("vector.on_error", "restart", f"{self.backend} steps all as one; use serial or processes")

    def resolve(self, backend: Backend, *, num_workers: int = 0, threads: int = 0) -> VectorConfig:
        """This config with `backend`, without the settings that `backend` does not use."""
        timeout_s = self.step_timeout_s if backend == "processes" else 0.0
        return replace(self, backend=backend, num_workers=num_workers, threads=threads, step_timeout_s=timeout_s)

"""Errors a user meets. Each says what was wrong, where, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence


class RunnelError(Exception):
    """Base of every error that runnel raises on purpose."""


class ConfigError(RunnelError):
    """A configuration that cannot work: names the field, its value, and the fix.

    >>> str(ConfigError("ppo.num_minibatches", 3, "must divide 1024; use 2 or 4"))
    'ppo.num_minibatches = 3: must divide 1024; use 2 or 4'
    """

    def __init__(self, field: str, value: object, fix: str) -> None:
        super().__init__(f"{field} = {value!r}: {fix}")
        self.field, self.value, self.fix = field, value, fix


class UnusedSettingError(ConfigError):
    """A changed setting that nothing would read: names the setting and the reason."""


class NonFiniteError(RunnelError):
    """NaN or infinity in a tensor: names the tensor and the step at which it appeared (None: the step is not known)."""

    def __init__(self, tensor: str, step: int | None, detail: str = "") -> None:
        super().__init__(
            f"{tensor} is not finite{'' if step is None else f' at step {step}'}{': ' + detail if detail else ''}. "
            "The run stopped before using it; the last good checkpoint is untouched."
        )
        self.tensor, self.step, self.detail = tensor, step, detail


class OutOfMemoryError(RunnelError):
    """Memory ran out: names what needed it, and which settings to lower.

    >>> print(OutOfMemoryError("a backward pass", "lower learner.micro_batch_tokens (now 8192)", "tried to allocate 2 GiB"))
    a backward pass ran out of memory: lower learner.micro_batch_tokens (now 8192). The allocator says: tried to allocate 2 GiB
    """

    def __init__(self, what: str, fix: str, detail: str) -> None:
        super().__init__(f"{what} ran out of memory: {fix}. The allocator says: {detail}")
        self.what, self.fix, self.detail = what, fix, detail


class EvaluationInterrupted(RunnelError):
    """An evaluation was given up because the run stops. The evaluation's `Progress` raises this."""


class DataError(RunnelError):
    """A data set, message or environment output that breaks its contract."""


class CheckpointError(RunnelError):
    """A checkpoint that is missing, damaged, or belongs to another run."""


class DiskError(CheckpointError):
    """A disk that cannot be written: it is read-only, or a folder may not be written. Existing checkpoints are untouched."""


class DiskFullError(DiskError):
    """A full disk, or a quota that is used up. Existing checkpoints are untouched."""


class UnrestorableError(CheckpointError):
    """A checkpoint that was just written lacks something that a resume needs; earlier ones are untouched."""


class WorkerFailure(RunnelError):
    """A worker that died or hung: names it, with its exit code, error or stack."""

    def __init__(self, worker: str, detail: str) -> None:
        super().__init__(f"worker {worker!r} {detail}")
        self.worker, self.detail = worker, detail


class EngineLost(WorkerFailure):
    """The process of an engine ended after it had worked, or was killed. The owner of the engine may start it again."""


class ClusterLost(RunnelError):
    """The cluster of a run is gone, and so the run ended: names the head node, what was saved, and how to resume."""


class RankError(RunnelError):
    """Ranks of a trainer that ended, are late, or were restarted: names them, and the stage in which this was noticed.

    >>> str(RankError([1], "update", "are gone"))
    'rank 1 (worker trainer-1) is gone, seen in stage update'
    """

    def __init__(self, ranks: Sequence[int], stage: str, what: str, detail: str = "", *, trainer: str = "trainer") -> None:
        names = [f"rank {r} (worker {f'{trainer}-{r}' if r else trainer})" for r in ranks]
        verb = what.replace("are ", "is ", 1) if len(ranks) == 1 else what
        super().__init__(f"{' and '.join(names)} {verb}, seen in stage {stage}{': ' + detail if detail else ''}")
        self.ranks, self.stage = list(ranks), stage


class DeadlockError(RunnelError):
    """No worker can make progress. Lists what each one waits for."""

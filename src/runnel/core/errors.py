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
    """A setting that was changed where nothing would read it: names it, and why."""


class NonFiniteError(RunnelError):
    """NaN or infinity in a tensor: names the tensor and the step at which it appeared (None: whoever saw it counts none)."""

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
    """Whoever stops a run does not wait for an evaluation: its `Progress` raises this, and the evaluation is given up."""


class DataError(RunnelError):
    """A data set, message or environment output that breaks its contract."""


class CheckpointError(RunnelError):
    """A checkpoint that is missing, damaged, or belongs to another run."""


class DiskError(CheckpointError):
    """A disk that takes nothing more: it is read-only, or a folder may not be written. Checkpoints that are there are
    untouched."""


class DiskFullError(DiskError):
    """A disk without room, or a quota that is spent. Checkpoints that are there are untouched."""


class UnrestorableError(CheckpointError):
    """A checkpoint that was just written lacks something that a resume needs; earlier ones are untouched."""


class WorkerFailure(RunnelError):
    """A worker that died or hung: names it, with its exit code, error or stack."""

    def __init__(self, worker: str, detail: str) -> None:
        super().__init__(f"worker {worker!r} {detail}")
        self.worker, self.detail = worker, detail


class EngineLost(WorkerFailure):
    """The process of an engine is gone, after it had worked or because somebody killed it: whoever owns it may start again."""


class ClusterLost(RunnelError):
    """The cluster of a run is gone, and the run with it: names its head, what was saved, and how to go on."""


class RankError(RunnelError):
    """Ranks of a trainer that are gone, late, or no longer the same: names them, and the stage in which it was seen.

    >>> str(RankError([1], "update", "are gone"))
    'rank 1 (worker trainer-1) is gone, seen in stage update'
    """

    def __init__(self, ranks: Sequence[int], stage: str, what: str, detail: str = "") -> None:
        names = [f"rank {r} (worker {f'trainer-{r}' if r else 'trainer'})" for r in ranks]
        verb = what.replace("are ", "is ", 1) if len(ranks) == 1 else what
        super().__init__(f"{' and '.join(names)} {verb}, seen in stage {stage}{': ' + detail if detail else ''}")
        self.ranks, self.stage = list(ranks), stage


class DeadlockError(RunnelError):
    """No worker can make progress. Lists what each one waits for."""

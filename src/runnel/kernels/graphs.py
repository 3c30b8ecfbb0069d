"""CUDA graphs: record a function of tensors once and replay it, so that the CPU makes one launch instead of thousands.

A graph repeats kernels at the addresses of its recording. Therefore a graph belongs to the addresses of the function's inputs,
its results are the same memory at every replay, and Python code inside (counting, appending) runs only during the recording.
Generators have to be named, because a replay must advance them.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from runnel.core.errors import RunnelError

R = TypeVar("R")
Pool = Any
"""Torch's handle of a memory pool, whose type is private."""
_pools: dict[torch.device, torch.cuda.CUDAGraph] = {}


class CaptureError(RunnelError):
    """A function cannot be recorded in a CUDA graph. Names it, the cause, and the usual causes."""

    def __init__(self, name: str, cause: str) -> None:
        super().__init__(
            f"{name} cannot be captured in a CUDA graph: {cause}. Inside it the host must not wait for the device, nor copy "
            "from pageable host memory: replace .item(), .tolist(), .cpu(), float(tensor), `if tensor`, nonzero and boolean "
            "indexing by operations on tensors (torch.where), make constant tensors before the first call, and draw random "
            "numbers from a generator that is named in `generators`"
        )


class CudaGraphed(Generic[R]):
    """Calls `function`. On a CUDA device, from the second call on, it replays a graph instead.

    Every call runs the function's work on the device exactly once, in the order of the calls. The first call with given inputs
    runs plainly (on a side stream, as warm-up for libraries that allocate). The second one records, which runs nothing, and
    replays. So results do not depend on the time of a recording, and a resumed run goes on bit for bit.

    Arguments may be tensors, mappings and sequences of them, and hashable values. A graph belongs to the addresses, shapes and
    types of the tensors, and to the other values. Tensors that the function holds itself (weights) must keep their addresses;
    call `forget` when they have moved. Record under `no_grad`, or take gradients inside (`torch.autograd.grad`): a later
    backward pass cannot enter a graph. Tensors made under `inference_mode` may leave the function only if nobody needs
    gradients through them.

    Graphs of one device share their inner memory. So they must be replayed one after the other, on one stream. The results of
    one must be used before an earlier recorded one is replayed, because that one may overwrite them.
    """

    def __init__(self, function: Callable[..., R], *, generators: Sequence[torch.Generator] = (), name: str = "") -> None:
        self._function, self._generators = function, list(generators)
        self._name = name or getattr(function, "__qualname__", "a function")
        self._graphs: dict[Hashable, tuple[torch.cuda.CUDAGraph, R]] = {}
        self._seen: set[Hashable] = set()

    def __call__(self, *args: object) -> R:
        device = cuda_device(args)
        if device is None:
            return self._function(*args)
        key = signature(args)
        if key not in self._seen:
            self._seen.add(key)
            return self._warm_up(device, args)
        if key not in self._graphs:
            self._graphs[key] = self._record(device, args)
        graph, result = self._graphs[key]
        graph.replay()
        return result

    def forget(self) -> None:
        """Drop all graphs. The next calls warm up and record again."""
        self._graphs.clear()
        self._seen.clear()

    def _warm_up(self, device: torch.device, args: tuple[object, ...]) -> R:
        here = torch.cuda.current_stream(device)
        aside = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        aside.wait_stream(here)
        with torch.cuda.stream(aside):
            result = self._function(*args)
        here.wait_stream(aside)
        return result

    def _record(self, device: torch.device, args: tuple[object, ...]) -> tuple[torch.cuda.CUDAGraph, R]:
        try:
            with recording(self._name, pool=_shared_pool(device), generators=self._generators) as graph:
                return graph, self._function(*args)
        except (CaptureError, torch.OutOfMemoryError):
            del _pools[device]  # after a failed recording, torch still marks this pool as being recorded
            raise


@contextmanager
def recording(name: str, *, pool: Pool, generators: Sequence[torch.Generator] = ()) -> Iterator[torch.cuda.CUDAGraph]:
    """Record the kernels that are launched inside into the yielded graph, with inner memory from `pool`.

    What cannot be recorded raises a `CaptureError`. An out-of-memory error stays one, because the caller knows what to reduce.
    """
    graph = torch.cuda.CUDAGraph()
    for generator in generators:
        graph.register_generator_state(generator)
    try:
        with _no_collection(), torch.cuda.graph(graph, pool=pool):
            yield graph
    except RuntimeError as error:
        for generator in (*_default_generators(), *generators):
            # a fresh copy: the old state is still marked as being recorded
            generator.graphsafe_set_state(generator.clone_state())
        for cause in (error, error.__context__):  # ending a broken recording raises a second error
            if isinstance(cause, torch.OutOfMemoryError):
                raise cause from None
        raise CaptureError(name, str(error).splitlines()[0]) from error


def _default_generators() -> Sequence[torch.Generator]:
    return torch.cuda.default_generators if torch.cuda.is_initialized() else ()  # type: ignore[no-untyped-call]


@contextmanager
def _no_collection() -> Iterator[None]:
    """Switch the garbage collector off: a graph that is freed during the recording of another one would break it."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _shared_pool(device: torch.device) -> Pool:
    """The memory pool of all graphs of a device. A small graph keeps it alive: torch frees a pool without graphs."""
    if device not in _pools:
        keeper = torch.cuda.CUDAGraph()
        with torch.cuda.device(device), torch.cuda.graph(keeper):
            torch.zeros(1, device=device)
        _pools[device] = keeper
    return _pools[device].pool()


def cuda_device(x: object) -> torch.device | None:
    """The device of the first CUDA tensor in nested mappings and sequences; None if there is none."""
    return next((leaf.device for leaf in _leaves(x) if isinstance(leaf, Tensor) and leaf.is_cuda), None)


def signature(x: object) -> Hashable:
    """The key of a graph: addresses, shapes, strides and types of tensors, and all other values.

    >>> x = torch.zeros(4)
    >>> signature({"a": x, "n": 3}) == signature({"a": x, "n": 3}) != signature({"a": x.clone(), "n": 3})
    True
    """
    return tuple(
        (leaf.data_ptr(), leaf.shape, leaf.stride(), leaf.dtype, leaf.device) if isinstance(leaf, Tensor) else leaf
        for leaf in _leaves(x)
    )


def _leaves(x: Any) -> list[Any]:
    if isinstance(x, Mapping):
        return [leaf for key in x for leaf in (key, *_leaves(x[key]))]
    if isinstance(x, list | tuple):
        return [leaf for item in x for leaf in _leaves(item)]
    return [x]

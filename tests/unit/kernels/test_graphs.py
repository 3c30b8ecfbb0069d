"""Captured functions: plain calls on the host; on a device, each call runs once, whichever way."""

from contextlib import contextmanager

import pytest
import torch

from runnel.core.records import Batch
from runnel.kernels.graphs import CaptureError, CudaGraphed, cuda_device, recording, signature

cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def test_on_the_host_it_is_the_function():
    calls = []

    def double(batch, n):
        calls.append(n)
        return batch["x"] * n

    captured = CudaGraphed(double)
    x = Batch(x=torch.arange(3.0))
    assert captured(x, 2).tolist() == [0.0, 2.0, 4.0]
    assert captured(x, 3).tolist() == [0.0, 3.0, 6.0]
    assert calls == [2, 3]


def test_a_signature_tells_addresses_shapes_and_values_apart():
    x = torch.zeros(4, 2)
    same = signature((Batch(a=x), [x], 3))
    assert same == signature((Batch(a=x), [x], 3))
    others = [(Batch(b=x), [x], 3), (Batch(a=x), [x.t()], 3), (Batch(a=x.clone()), [x], 3), (Batch(a=x), [x], 4)]
    assert all(signature(other) != same for other in others)
    assert signature(x[:2]) != signature(x[:3])
    assert cuda_device((Batch(a=x), 1, "text")) is None


def test_the_error_names_the_function_and_the_fix():
    message = str(CaptureError("an update", "operation not permitted when stream is capturing"))
    assert "an update cannot be captured" in message
    assert ".item()" in message


@cuda
@pytest.mark.cuda
def test_every_call_runs_once_and_random_numbers_go_on():
    def play(x, generator):
        x.add_(torch.rand(4, generator=generator, device="cuda"))
        return x * 2

    plain, replayed = (torch.zeros(4, device="cuda") for _ in range(2))
    generators = [torch.Generator("cuda").manual_seed(3) for _ in range(2)]
    captured = CudaGraphed(lambda x: play(x, generators[1]), generators=[generators[1]])
    for _ in range(5):
        want, got = play(plain, generators[0]), captured(replayed)
        assert torch.equal(want, got)
        assert torch.equal(plain, replayed)
    assert torch.equal(generators[0].get_state(), generators[1].get_state())
    generators[0].set_state(generators[1].get_state())
    other = torch.zeros(4, device="cuda")
    assert torch.equal(play(torch.zeros(4, device="cuda"), generators[0]), captured(other))
    assert len(captured._graphs) == 1


@cuda
@pytest.mark.cuda
def test_gradients_inside_a_graph():
    weight = torch.ones(3, device="cuda", requires_grad=True)

    def step(x):
        loss = (weight * x).square().sum()
        (grad,) = torch.autograd.grad(loss, [weight])
        with torch.no_grad():
            weight.sub_(grad, alpha=0.1)
        return loss.detach()

    captured, x = CudaGraphed(step), torch.ones(3, device="cuda")
    losses = [captured(x).item() for _ in range(4)]
    assert losses == pytest.approx([3 * 0.8 ** (2 * k) for k in range(4)])


@cuda
@pytest.mark.cuda
def test_a_wait_inside_is_named():
    captured, x = CudaGraphed(lambda x: x * x.sum().item(), name="my update"), torch.ones(3, device="cuda")
    captured(x)
    with pytest.raises(CaptureError, match="my update cannot be captured"):
        captured(x)
    torch.cuda.synchronize()
    assert torch.ones(2, device="cuda").sum().item() == 2.0
    assert torch.rand(2, device="cuda").max().item() < 1.0  # the device's generator is free again


@pytest.mark.parametrize(
    ("inside", "at_end", "expected"),
    [
        (RuntimeError("operation not permitted"), None, CaptureError),
        (torch.OutOfMemoryError("CUDA out of memory"), None, torch.OutOfMemoryError),
        (torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("a previous error during capture"), torch.OutOfMemoryError),
    ],
)
def test_memory_that_runs_out_while_recording_is_not_taken_for_what_cannot_be_recorded(monkeypatch, inside, at_end, expected):
    @contextmanager
    def graph(found, pool):
        try:
            yield
        except RuntimeError:
            if at_end is not None:
                raise at_end  # noqa: B904 (as torch does)
            raise

    monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
    monkeypatch.setattr(torch.cuda, "graph", graph)
    with pytest.raises(expected), recording("a pass", pool=None):
        raise inside

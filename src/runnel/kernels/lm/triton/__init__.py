# mypy: ignore-errors
"""Triton kernels for language models on a CUDA device; without Triton they can be imported, and are never called."""

try:
    import triton
    import triton.language as tl
except ImportError:  # torch for the CPU comes without Triton: then `jit` leaves a kernel as it is
    from types import SimpleNamespace

    triton, tl = SimpleNamespace(jit=lambda kernel: kernel), SimpleNamespace(constexpr=lambda value: value)

__all__ = ["tl", "triton"]

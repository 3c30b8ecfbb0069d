"""Triton kernels for language models on a CUDA device; without Triton they can be imported, and are never called."""

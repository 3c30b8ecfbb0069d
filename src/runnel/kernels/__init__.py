"""All acceleration: CUDA graphs, compiled loops, Triton kernels. Each has a plain form elsewhere, and tests compare the two."""

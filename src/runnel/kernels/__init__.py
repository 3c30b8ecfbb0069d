"""The one place of acceleration: CUDA graphs, compiled loops, Triton kernels. What each does is written plainly elsewhere, and
tests hold it against that."""

"""Small networks on a CUDA device, in Triton."""

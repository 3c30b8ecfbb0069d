"""Small networks on the CPU, compiled by Numba."""

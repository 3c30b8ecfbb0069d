"""Compiled loops for language models in float32 on the CPU; a module that needs Numba is imported where it is used."""

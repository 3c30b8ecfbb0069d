"""Language models: compiled loops for the CPU (`numba/`) and kernels for CUDA (`triton/`) behind `llm/model` and the engine."""

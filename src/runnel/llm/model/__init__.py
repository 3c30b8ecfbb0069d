"""Causal language models: packed parameters, the one decoder and the parts of its blocks, the model in training, adapters."""

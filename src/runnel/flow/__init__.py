"""Streams, staleness, transports and workers. Knows nothing of environments, agents or language models."""

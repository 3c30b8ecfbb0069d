"""Environments with several agents: their vectors (`contract.py`, `serial.py`) and the sampler that plays them."""

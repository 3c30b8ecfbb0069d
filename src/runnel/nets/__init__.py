"""Torch modules, and the inferencer that serves them."""

"""Sharding: which rows of parameters and of batches each rank has."""

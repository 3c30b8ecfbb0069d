"""Calls of user code (rewards, tools, environments behind an address): a pool, and the executors that run the functions.

Modules of this package import the standard library and light modules of `runnel.core` when they load: a worker process starts
in 0.2 s.
"""

"""Runs under faults."""

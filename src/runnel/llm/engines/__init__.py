"""Engines: inferencers that complete token sequences."""

"""Measurements of runnel: side by side with peers (`harness.py`), and what recipes reach over seeds (`learning/`)."""

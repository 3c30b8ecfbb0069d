"""Algorithms for tokens: each an annotation rule and a loss component, in a file of its own. Start with `base.py`."""

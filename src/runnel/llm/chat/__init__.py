"""Conversations of several turns: environments that talk, tools, and the exact tokens of what was said."""

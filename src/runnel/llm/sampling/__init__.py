"""Samplers of language models: prompts, demonstrations, pairs, and the streams that they write."""

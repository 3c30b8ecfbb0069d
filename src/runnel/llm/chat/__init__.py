"""Conversations of several turns, with tools."""

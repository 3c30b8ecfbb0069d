"""Predictions of `runnel plan` beside real runs."""

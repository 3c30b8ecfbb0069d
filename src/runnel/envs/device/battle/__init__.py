"""Battles of small armies: who fights (`units`), movement and blows (`field`), a scripted enemy (`enemy`), what units see
(`view`), and the world of these."""

"""Overcooked's kitchens: maps (`layouts`), what hands do (`rules`), what cooks see (`view`, `planes`), the world."""

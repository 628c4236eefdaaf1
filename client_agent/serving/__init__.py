"""Scores on request: the active silo's server, and what a passive silo's agent answers to it."""

"""Measurements, each a script; their results lie in ``results/`` as JSON."""

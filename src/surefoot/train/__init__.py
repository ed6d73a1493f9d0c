"""Trains drafters: data, the target's features, the loop, and what comes out of it."""

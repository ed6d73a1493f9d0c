"""What a model remembers of a sequence, as a transaction: tentative nodes are committed along a path or forgotten."""

"""Control: what to draft next, and whether at all."""

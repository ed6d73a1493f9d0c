"""DFlash: a small network that drafts a whole block at once from the target's hidden states (arXiv 2602.06036)."""

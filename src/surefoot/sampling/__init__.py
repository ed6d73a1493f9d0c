"""Logits to processed logits to a token."""

from surefoot.sampling.processors import Support
from surefoot.sampling.sampler import UNDRAWABLE, RequestSampler, undrawable

__all__ = ["UNDRAWABLE", "RequestSampler", "Support", "undrawable"]

"""The arithmetic of the models: plain functions on tensors."""

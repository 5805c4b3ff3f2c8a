"""The actor loop and evaluation."""

"""Exact evaluation on seeds, comparison of policies, and replay."""

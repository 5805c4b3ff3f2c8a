"""Environments of other projects, run in their own Python environment and stepped over the wire; base install only."""

"""The embodied command."""

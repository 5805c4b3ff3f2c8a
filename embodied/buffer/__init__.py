"""Segments become episodes, and episodes are kept."""

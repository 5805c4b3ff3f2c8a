"""Metrics, progress and plots of a run."""

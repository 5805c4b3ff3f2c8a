"""Runs on disk: settings, folders, checkpoints, and the parts made from settings."""

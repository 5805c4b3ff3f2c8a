"""Manipulation tasks, one file each."""

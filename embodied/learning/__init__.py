"""Advantages, losses and algorithms, one file each."""

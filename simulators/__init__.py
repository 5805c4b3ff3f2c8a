"""Batched MuJoCo physics, scenes, cameras and tasks."""

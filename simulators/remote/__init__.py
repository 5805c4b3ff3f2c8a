"""Environments that run in workers (`simulators.worker`) behind the wire."""

from simulators.remote.make import make_env

__all__ = ["make_env"]

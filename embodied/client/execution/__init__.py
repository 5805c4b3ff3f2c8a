"""Execution of chunks: open loop, receding horizon, temporal ensembling, real-time chunking by prefix."""

from embodied.client.execution.ensembling import Ensembling
from embodied.client.execution.executor import Executor, Step, Strategy
from embodied.client.execution.horizon import RecedingHorizon
from embodied.client.execution.prefix import RealTime, no_prefix

__all__ = ["Ensembling", "Executor", "RealTime", "RecedingHorizon", "Step", "Strategy", "no_prefix"]

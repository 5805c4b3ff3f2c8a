"""Managers of terms, under the names of Isaac Lab's `managers`."""

from simulators.isaac.cfg import (
    ActionTermCfg,
    CommandTermCfg,
    CurriculumTermCfg,
    EventTermCfg,
    ManagerTermBaseCfg,
    ObservationGroupCfg,
    ObservationTermCfg,
    RewardTermCfg,
    SceneEntityCfg,
    TerminationTermCfg,
)
from simulators.isaac.managers.action import ActionManager, ActionTerm
from simulators.isaac.managers.base import ManagerBase, ManagerTermBase
from simulators.isaac.managers.command import CommandManager, CommandTerm
from simulators.isaac.managers.curriculum import CurriculumManager
from simulators.isaac.managers.event import EventManager
from simulators.isaac.managers.observation import ObservationManager
from simulators.isaac.managers.recorder import RecorderManager
from simulators.isaac.managers.reward import RewardManager
from simulators.isaac.managers.termination import TerminationManager

__all__ = [
    "ActionManager",
    "ActionTerm",
    "ActionTermCfg",
    "CommandManager",
    "CommandTerm",
    "CommandTermCfg",
    "CurriculumManager",
    "CurriculumTermCfg",
    "EventManager",
    "EventTermCfg",
    "ManagerBase",
    "ManagerTermBase",
    "ManagerTermBaseCfg",
    "ObservationGroupCfg",
    "ObservationManager",
    "ObservationTermCfg",
    "RecorderManager",
    "RewardManager",
    "RewardTermCfg",
    "SceneEntityCfg",
    "TerminationManager",
    "TerminationTermCfg",
]

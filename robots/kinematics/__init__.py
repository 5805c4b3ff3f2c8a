"""Batched kinematics of serial arms, read from a robot's description."""

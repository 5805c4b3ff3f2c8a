"""Isaac Lab's `sensors`: frame transformers."""

from simulators.isaac.frame_transformer import FrameTransformer, FrameTransformerCfg, FrameTransformerData, OffsetCfg

__all__ = ["FrameTransformer", "FrameTransformerCfg", "FrameTransformerData", "OffsetCfg"]

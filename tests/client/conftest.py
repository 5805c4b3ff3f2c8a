"""What tests of the client share: the tiny policy and its servers of `tests/serving`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "serving"))

"""What tests of runs share with other rooms' tests: the policies of `tests/learning`, the command of `tests/cli`."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / room) for room in ("learning", "cli")]

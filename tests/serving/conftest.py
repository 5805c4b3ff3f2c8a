"""What tests of servers share with tests of learners: the policies of `tests/learning/planted.py`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "learning"))

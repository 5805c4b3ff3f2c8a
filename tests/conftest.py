"""Settings that all tests share."""

import os
from pathlib import Path

from hypothesis import settings

# Processes that tests start import their helpers as `tests.<room>.<file>`, too.
os.environ["PYTHONPATH"] = str(Path(__file__).parents[1])

# A busy machine is slow now and then, which says nothing about the code: no example has a time limit of its own.
settings.register_profile("house", deadline=None)
settings.load_profile("house")

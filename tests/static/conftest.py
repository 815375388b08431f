"""Tiny models and texts of the tests of changes."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "changes"))

"""The gates that the preflight reads are among the files that are damaged here."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "preflight"))

"""The folder of this package's sources."""

from pathlib import Path

FOLDER = Path(__file__).parents[1]

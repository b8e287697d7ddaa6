"""Where the sources are whose code the processes for grammars compile."""

from pathlib import Path

FOLDER = Path(__file__).parents[1]

"""Structural tags: free text, fixed text and JSON in turns, compiled to one stack automaton."""

from .compile import TagCompiler
from .format import Format, read_format

__all__ = ["Format", "TagCompiler", "read_format"]

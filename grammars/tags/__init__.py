"""Structural tags: a sequence of free text, fixed text and JSON, compiled to one stack automaton."""

from .compile import TagCompiler
from .format import Format, read_format

__all__ = ["Format", "TagCompiler", "read_format"]

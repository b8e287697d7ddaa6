"""Structural tags: a sequence of free text, fixed text and JSON, compiled to one stack automaton."""

"""Compiles JSON schemas to stack automata over bytes."""

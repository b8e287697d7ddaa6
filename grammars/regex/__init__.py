"""Regexes as automata over bytes."""

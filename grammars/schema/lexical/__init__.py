"""Automata over the bytes of scalar JSON values."""

"""Runs llguidance, in separate processes, for grammars that have no automaton."""

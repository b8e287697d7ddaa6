"""Runs llguidance, in processes of its own, for grammars that have no automaton."""

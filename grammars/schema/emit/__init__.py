"""Turns the graph of values into a stack automaton."""

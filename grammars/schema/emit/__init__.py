"""The graph of values as a stack automaton."""

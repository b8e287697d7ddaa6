"""Token masks: what of the vocabulary each state of an automaton allows."""

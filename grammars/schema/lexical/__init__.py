"""The texts of scalar JSON values, as automata over bytes."""

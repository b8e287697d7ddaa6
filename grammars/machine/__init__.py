"""Stack automata: their format, stepping, packed rows, shortest exits and depth guard."""

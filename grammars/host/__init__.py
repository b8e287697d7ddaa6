"""llguidance: compiles and follows the grammars that have no automaton, in processes of its own."""

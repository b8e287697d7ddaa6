"""Grammars that bind the output: automata for the device, matchers for the host."""

from .automaton import DEAD, Automaton
from .compiler import GrammarCompiler
from .errors import GrammarError
from .host import HostGrammar, HostMatcher

__all__ = ["DEAD", "Automaton", "GrammarCompiler", "GrammarError", "HostGrammar", "HostMatcher"]

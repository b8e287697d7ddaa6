"""Grammars that bind the output: automata for the device, matchers for the host."""

from .automaton import Automaton
from .compiler import GrammarCompiler
from .errors import GrammarError
from .grammar_files import GrammarFiles, default_directory
from .host import HostGrammar, HostMatcher
from .stack_automaton import DEAD

__all__ = [
    "DEAD",
    "Automaton",
    "GrammarCompiler",
    "GrammarError",
    "GrammarFiles",
    "HostGrammar",
    "HostMatcher",
    "default_directory",
]

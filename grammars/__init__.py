"""Grammars that bind the output: automata for the device, matchers for the host."""

from .automaton import Automaton
from .compiler import GrammarCompiler
from .errors import BusyError, CompilerError, GrammarError
from .grammar_files import GrammarFiles, default_directory
from .host_grammar import HostGrammar, HostMatcher
from .jump_forward import ForcedText, Segmenter, forced_text, load_segmenter
from .stack_automaton import CHOICE, DEAD

__all__ = [
    "CHOICE",
    "DEAD",
    "Automaton",
    "BusyError",
    "CompilerError",
    "ForcedText",
    "GrammarCompiler",
    "GrammarError",
    "GrammarFiles",
    "HostGrammar",
    "HostMatcher",
    "Segmenter",
    "default_directory",
    "forced_text",
    "load_segmenter",
]

"""Grammars that constrain the output: automata for the device, matchers for the host."""

from .errors import BusyError, CompilerError, GrammarError
from .host.grammar import HostGrammar, HostMatcher
from .machine.automaton import Automaton
from .machine.jump_forward import ForcedText, ForcedTextTokenizer, forced_text, load_forced_text_tokenizer
from .machine.stack_automaton import CHOICE
from .service.compiler import GrammarCompiler
from .service.files import GrammarFiles, default_directory

__all__ = [
    "CHOICE",
    "Automaton",
    "BusyError",
    "CompilerError",
    "ForcedText",
    "ForcedTextTokenizer",
    "GrammarCompiler",
    "GrammarError",
    "GrammarFiles",
    "HostGrammar",
    "HostMatcher",
    "default_directory",
    "forced_text",
    "load_forced_text_tokenizer",
]

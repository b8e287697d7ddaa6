"""JSON schemas compiled to stack automata over bytes."""

from .compile import PropertyOrder, SchemaCompiler
from .read.document import Unenforced

__all__ = ["PropertyOrder", "SchemaCompiler", "Unenforced"]

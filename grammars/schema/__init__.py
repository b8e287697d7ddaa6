"""JSON schemas compiled to stack automata over bytes."""

from .compile import PropertyOrder, SchemaCompiler

__all__ = ["PropertyOrder", "SchemaCompiler"]

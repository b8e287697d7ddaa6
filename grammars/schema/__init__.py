"""Compiles JSON schemas to stack automata over bytes."""

from .compile import SchemaCompiler

__all__ = ["SchemaCompiler"]

"""Arbora: a serving engine for open-weight language models, built around a radix tree of KV pages."""

__version__ = "0.1.0"

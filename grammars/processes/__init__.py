"""Framed messages and limits for processes that read clients' grammars."""

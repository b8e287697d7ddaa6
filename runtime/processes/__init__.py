"""Modules that all processes use: their start, sockets and signs of life."""

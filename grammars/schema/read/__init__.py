"""Reads a schema document as formulas."""

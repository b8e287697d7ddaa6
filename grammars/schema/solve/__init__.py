"""Formulas as a graph of the values that they allow."""

"""Turns formulas into a graph of the values that they allow."""

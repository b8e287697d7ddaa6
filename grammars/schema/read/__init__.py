"""A schema document as formulas."""

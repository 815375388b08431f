"""Advice: which variant, at what cost."""

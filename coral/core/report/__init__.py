"""Figures, each a pure function of what it shows."""

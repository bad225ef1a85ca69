"""Coral: serve several LLMs on rented GPUs of mixed kinds for the least money."""

__version__ = "0.1.0"

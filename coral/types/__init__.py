"""Frozen values that cross a process or plugin boundary. Imports only msgspec and numpy."""

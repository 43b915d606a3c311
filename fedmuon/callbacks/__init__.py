"""Callbacks of every run: its record, its progress, its checkpoints."""

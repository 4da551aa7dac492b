"""Implement the commands of `brorl`, one file each, and the wiring from settings to running services."""

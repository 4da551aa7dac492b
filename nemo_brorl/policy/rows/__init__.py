"""Rows of packed responses that share a prompt."""

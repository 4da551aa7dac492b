"""Clients that ask scoring services and judges over HTTP for scores."""

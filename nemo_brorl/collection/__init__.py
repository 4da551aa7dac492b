"""Filling batches: what outlives a step (`collector.py`) and one batch being filled (`collection.py`)."""

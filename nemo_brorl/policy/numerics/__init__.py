"""Number formats: precision, FP8 recipes and their emulation on CPU."""

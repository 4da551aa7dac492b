"""Verifiers: they turn the text of a response into its raw reward. `registry.py` lists them."""

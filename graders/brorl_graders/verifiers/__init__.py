"""Verifiers: from the text of a response to its raw reward. `registry.py` names them."""

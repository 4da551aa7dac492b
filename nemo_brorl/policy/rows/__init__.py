"""Pack responses that share a prompt into rows of tokens."""

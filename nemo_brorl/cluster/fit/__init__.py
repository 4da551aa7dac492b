"""Whether a run fits its model and its machine, and the sizes that nobody gave; `brorl plan` asks the same."""

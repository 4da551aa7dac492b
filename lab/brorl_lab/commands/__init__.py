"""Commands of the lab, one module for each."""

"""Wrap the private names of other libraries that the policy uses, one module for each library."""

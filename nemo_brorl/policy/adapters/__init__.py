"""The private names of other libraries that the policy uses, each library's in one module."""

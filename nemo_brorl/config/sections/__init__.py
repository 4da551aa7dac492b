"""Sections of a configuration: each file declares settings and the rules between settings of the same section."""

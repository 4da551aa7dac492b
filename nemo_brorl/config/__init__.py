"""Hold the settings: a section declares each with its rules, `load.py` makes a checked config of all that is given."""

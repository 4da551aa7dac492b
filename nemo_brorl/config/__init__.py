"""Settings: `sections/` declares them with their rules, `load.py` makes a checked config of command line and YAML."""

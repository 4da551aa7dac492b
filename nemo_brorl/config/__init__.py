"""Settings: `schema.py` (types, defaults), `rules.py` (what must fit together), `load.py` (command line and YAML to a
checked config)."""

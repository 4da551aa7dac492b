"""Plan a run: whether it fits its devices, and how long a step takes. `docs/planner.md` has the tables."""

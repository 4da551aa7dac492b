"""The planner: does a run fit its devices, and how long does a step take? `docs/planner.md` has its tables."""

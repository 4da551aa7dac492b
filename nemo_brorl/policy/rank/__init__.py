"""Run one rank: its actor, the methods that the driver calls, and the update."""

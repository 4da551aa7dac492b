"""Plan, start and watch a run on a cluster: planner, doctor, job scripts, and commands that look at runs."""

"""Set up the process of a rank: its device, process groups, progress and profiles."""

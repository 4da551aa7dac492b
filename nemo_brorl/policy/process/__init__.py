"""The process of a rank: its device, its place among the ranks, process groups, progress and profiles."""

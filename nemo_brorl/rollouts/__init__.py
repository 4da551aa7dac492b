"""The stage that fills a batch with groups of rollouts, and the schedule of their number over training."""

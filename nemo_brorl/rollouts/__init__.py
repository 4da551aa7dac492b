"""The stage that fills a batch with groups of rollouts, and the schedule of N over training."""

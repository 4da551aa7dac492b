"""The number of rollouts of a group: waves, and what is believed of a prompt."""

"""One rank at work: its actor, what the driver may ask of it, and the update."""

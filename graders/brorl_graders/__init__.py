"""Grade responses: verifiers, the sandbox they run code in, and environments that answer a model's turns."""

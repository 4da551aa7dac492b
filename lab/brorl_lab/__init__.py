"""Read what runs have left behind, study them, and make small base models."""

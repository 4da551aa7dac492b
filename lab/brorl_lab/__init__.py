"""Study what runs have recorded, and make small base models."""

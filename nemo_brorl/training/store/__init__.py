"""The rollout store: every group of every step as Parquet files."""

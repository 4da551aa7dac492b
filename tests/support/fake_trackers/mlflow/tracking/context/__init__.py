"""Stand-in for mlflow.tracking.context."""

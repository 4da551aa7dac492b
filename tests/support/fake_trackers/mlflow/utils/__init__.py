"""Stand-in for mlflow.utils."""

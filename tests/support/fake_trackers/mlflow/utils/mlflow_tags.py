"""Stand-in for mlflow.utils.mlflow_tags."""

MLFLOW_RUN_NAME = "mlflow.runName"

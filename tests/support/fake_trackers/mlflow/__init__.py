"""Stand-in for mlflow (signatures of mlflow-skinny 3.17.2)."""


def set_tracking_uri(uri: str) -> None:
    return

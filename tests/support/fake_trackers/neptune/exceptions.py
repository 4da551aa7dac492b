"""Stand-in for neptune.exceptions."""


class InactiveRunException(Exception):
    pass

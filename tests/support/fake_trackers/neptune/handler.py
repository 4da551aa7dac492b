"""Stand-in for neptune.handler."""


class Handler:
    pass

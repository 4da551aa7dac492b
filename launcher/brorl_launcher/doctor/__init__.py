"""Check whether a machine or a job has all that a run needs.

`command.py` runs the checks of a node, `job.py` combines those of a job's nodes.
"""

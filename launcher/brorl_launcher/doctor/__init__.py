"""The doctor, which says whether all is there that a run needs. `commands/doctor.py` puts the checks of a node
together, `job.py` the nodes of a job."""

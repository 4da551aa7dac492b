"""Run inside a Slurm job: the job script's parts, Ray on each node, and the watch over the nodes."""

"""The machines, with Ray, the placement of processes, what fits, and the doctor."""

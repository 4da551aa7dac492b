"""The machines, with Ray, the placement of processes, and the doctor."""

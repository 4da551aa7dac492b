"""What runs inside a Slurm job: its script, Ray on its nodes, and who watches them."""

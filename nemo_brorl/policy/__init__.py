"""The Megatron-core policy. The only folder that imports megatron; the driver sees `group.MegatronPolicy` and nothing
else."""

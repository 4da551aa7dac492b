"""Run the policy without a GPU: stand-ins for CUDA, kernels, Adam, and an emulation of FP8."""

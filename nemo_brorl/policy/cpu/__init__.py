"""What the policy needs to run without a GPU: stand-ins for CUDA, kernels, Adam, and the emulation of FP8."""

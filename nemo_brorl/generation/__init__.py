"""Sampling: vLLM engines as Ray actors behind the Generator port. The only folder that imports vllm."""

"""Sampling: vLLM engines as Ray actors behind the Generator port. No other folder imports vllm."""

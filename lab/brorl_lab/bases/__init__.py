"""Warm up a small, newly made model, for machines that cannot download one."""

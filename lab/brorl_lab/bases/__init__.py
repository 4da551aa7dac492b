"""Warm-up of a small model made from nothing, for machines that cannot download one."""

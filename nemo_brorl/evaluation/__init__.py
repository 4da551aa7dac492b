"""Evaluate models: on held-out prompts during training (`validation.py`), and on benchmarks (docs/howto/evaluate.md).

benchmarks.py ─► asking.py ─► estimates.py ─► results.py ─► tables.py
 prompts          sampled,       per benchmark,   evaluation.json   for people
                  kept on disk   domain, task
"""

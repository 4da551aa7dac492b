"""How good a model is: on held-out prompts while it is trained (`validation.py`), and on benchmarks
(docs/evaluation.md).

benchmarks.py ─► asking.py ─► estimates.py ─► results.py ─► tables.py
 what to ask      sampled,       per benchmark,   evaluation.json   for people
                  kept on disk   domain, task
"""

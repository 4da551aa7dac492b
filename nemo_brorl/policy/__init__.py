"""The Megatron-core policy. The only room that imports megatron; other rooms see `driver.megatron_policy`.

Its folders import in this order, from above to below: driver, rank, state, model, process, cpu, rows,
adapters.
"""

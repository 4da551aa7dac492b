"""The Megatron-core policy: the only package that imports megatron. Other packages see `driver.megatron_policy`.

Its folders import each other only in this order: driver, rank, state, model, process, cpu, rows, adapters.
"""

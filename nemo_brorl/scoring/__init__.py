"""The processes that run verifiers under deadlines."""

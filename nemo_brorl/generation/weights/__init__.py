"""The receiving end of new weights, in vLLM's workers."""

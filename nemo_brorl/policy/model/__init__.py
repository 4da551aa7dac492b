"""Build the model with Megatron: layers, attention, rotary embedding, log-probs."""

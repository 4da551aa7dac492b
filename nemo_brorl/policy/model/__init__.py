"""The model that Megatron builds: layers, attention, rotary embedding, log-probs."""

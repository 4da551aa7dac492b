"""The two ends of a weight transport, for policy ranks and vLLM's workers alike. Neither the driver nor planning code
imports it."""

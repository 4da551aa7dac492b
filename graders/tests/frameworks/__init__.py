"""Programs that run the README's examples with the frameworks themselves (scripts/test_adapters.sh)."""

"""Which engine samples what: the placement of chunks on engines and what it believes of lengths."""

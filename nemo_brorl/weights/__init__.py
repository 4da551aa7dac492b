"""Sync weights from end to end: Hugging Face names, the policy's stream, the transport, and the engines that load it.

The modules also read and write Hugging Face model folders.
"""

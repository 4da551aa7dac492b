"""A publication of weights from end to end: their Hugging Face names and folders, the stream out of the policy's ranks,
the wire, and the engines that receive it."""

"""The Hugging Face side of weights: layout, folders, and the stream to the engines."""

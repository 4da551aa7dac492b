"""New weights from the policy to the engines."""

"""Placement of chunks on engines, and the forecast of response lengths that it uses."""

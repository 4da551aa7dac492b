"""Ask services and judges over HTTP for scores."""

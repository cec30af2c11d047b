"""Ground truth: the executable specification, in plain torch and plain Python, written to be read."""

"""Fair timing and honest statistics."""

"""kvbench: the benchmark and verification suite for paged KV caches."""

__version__ = "0.1.0.dev0"

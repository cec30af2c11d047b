"""Checks and measurements that run against any adapter."""

"""Benchmarks: each compares with a baseline in the same run and prints one table."""

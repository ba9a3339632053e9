"""The time of one token by stages: a clock, and the benchmark that reads it."""

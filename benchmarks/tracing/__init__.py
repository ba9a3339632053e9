"""Where the time of one token goes: a clock of stages, and the benchmark that reads it."""

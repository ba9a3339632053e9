"""Where the time of one token goes: a clock of stages in both processes, and the benchmark that
reads it.
"""

"""Runs a program against the record of one of its runs: `python -m pie_control.replaying FILE`."""

"""The commands of guests' queues, one file for a kind; `command.py` says what a kind has to
tell.
"""

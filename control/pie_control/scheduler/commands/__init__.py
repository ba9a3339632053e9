"""The commands of guests' queues, one file per kind; `command.py` defines the interface."""

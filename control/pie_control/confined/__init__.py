"""Processes that work on what strangers sent, with limits of time and memory."""

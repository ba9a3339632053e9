"""Processes on a machine of a cluster: keepers, actors, and operators' commands."""

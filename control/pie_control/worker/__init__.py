"""The way to the inference worker: its process and socket, and when a plan is sent to it."""

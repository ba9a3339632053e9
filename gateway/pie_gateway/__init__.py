"""The HTTP gateway: a process beside the control process, whose client it is."""

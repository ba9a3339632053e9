"""Many machines as one server. So far only what is pure: no socket, no process, no clock."""

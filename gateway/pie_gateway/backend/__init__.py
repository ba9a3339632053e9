"""The control process behind the gateway, as clients of its users see it."""

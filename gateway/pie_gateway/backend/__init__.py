"""What stands behind the gateway: the control process, seen as users' clients."""

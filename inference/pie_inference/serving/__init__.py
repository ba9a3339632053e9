"""The worker: its socket, the engine that runs plans, and plans under way on a GPU."""

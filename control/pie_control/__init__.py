"""The control process: runs inferlets as fibers on one trio thread, and batches their calls."""

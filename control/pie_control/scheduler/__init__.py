"""From the commands of many queues to batches, to the worker, and from its results to futures."""

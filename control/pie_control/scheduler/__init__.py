"""From the commands of many queues to plans of batches, to the worker, and from its results to
futures.
"""

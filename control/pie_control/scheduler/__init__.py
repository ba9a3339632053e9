"""From the commands of many queues to plans of batches, and from their results to futures."""

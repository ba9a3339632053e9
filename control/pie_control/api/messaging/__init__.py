"""Messages between the instances of one user: topics with subscribers, and work queues."""

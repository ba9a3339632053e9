"""When a batch is sent: the policies of the paper's Table 5, and what they come to."""

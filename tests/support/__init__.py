"""What the tests share: checkpoints, reference implementations, rigs, servers and programs."""

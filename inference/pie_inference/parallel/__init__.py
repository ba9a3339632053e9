"""Models on several devices: tensor parallelism (Shoeybi et al. 2019)."""

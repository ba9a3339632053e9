"""Makes served models of checkpoints: devices, kernels, pool sizes, pools."""

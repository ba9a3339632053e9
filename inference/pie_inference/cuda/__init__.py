"""What only NVIDIA GPUs have: graphs, streams, kernels of FlashInfer."""

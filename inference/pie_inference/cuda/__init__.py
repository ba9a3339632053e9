"""Code for NVIDIA GPUs only: graphs, kernels of FlashInfer and Triton."""

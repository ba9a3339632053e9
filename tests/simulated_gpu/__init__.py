"""A GPU that is none: the worker's CUDA code runs on it, so that most of its mistakes show without
one.

Tensors on `cuda` hold their numbers in host memory, and every operation on them is done at once, by
PyTorch on the CPU. What is held to the rules of the real thing: an operation sees tensors of one
device, and only copies cross over; what makes the host wait for the device is counted, and
forbidden while a graph is recorded; a replay repeats the recorded operations on the recorded
memory, nothing else; there is so much memory, which holds anything before it is written.
FlashInfer's own host code runs, and where it would call a compiled kernel, the kernel's documented
meaning is computed.

What it cannot show: whether kernels compile, what they compute, how long anything takes, and
whether streams wait for each other where they must.
"""

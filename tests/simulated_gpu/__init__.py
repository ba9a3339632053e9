"""A GPU that is none: the worker's CUDA code runs on it, so that most of its mistakes show without
one.

Tensors on `cuda` hold their numbers in host memory, and every operation on them is done at once, by
PyTorch on the CPU. What is held to the rules of the real thing:

- Devices: an operation sees tensors of one device, and only copies cross over (`tensors.py`).
- Order: every buffer remembers which stream wrote it and which ones read it. Whoever reads or
  writes it
  must come after them, by waiting for a stream or an event: streams, and the host too (`order.py`).
- Waiting: an operation that makes the host wait for the device is counted, and forbidden while a
  graph is
  recorded (`driver.py`).
- Graphs: a replay repeats the recorded operations on the recorded memory, nothing else
  (`driver.py`).
- Memory: there is so much of it; who asks for more runs out of memory.
- FlashInfer: its own host code runs; where it would call a compiled kernel, the kernel's documented
  meaning is computed (`kernels.py`).

What it cannot show: whether kernels compile, what they compute, how long anything takes.
"""

"""The pools: keys, values and states of layers, embeds, and pages in host memory."""

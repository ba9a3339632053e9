"""Where keys, values and hidden states lie: the KV pool, embeds, and pages in host memory."""

"""KV pages and embeds: physical pools, the instances' virtual address spaces, exports."""

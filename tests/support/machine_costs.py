"""What a machine's steps and swaps take, as policies are told."""

from __future__ import annotations

from pie_control.interception.costs import Costs

FACTS = {
    "page_bytes": 1 << 20,
    "page_size": 16,
    "swap_out": {"seconds": 1e-4, "bytes_per_second": 1e10},
    "swap_in": {"seconds": 1e-4, "bytes_per_second": 2e10},
    "prefill": {
        "tokens": [16, 64, 256, 1024],
        "seconds": [0.01, 0.011, 0.02, 0.07],
        "fit": [0.008, 6e-5, 1e-9],
    },
    "decode": {"sequences": [1, 8, 32], "seconds": [0.01, 0.012, 0.024]},
}


COSTS = Costs.measured(FACTS)

"""The shapes of the two models. To import `model`, which builds them, takes seconds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SIZES: Mapping[str, Mapping[str, Any]] = {
    "pie-tiny": {
        "hidden_size": 256,
        "intermediate_size": 640,
        "num_hidden_layers": 6,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
    },
    "pie-tiny-draft": {
        "hidden_size": 128,
        "intermediate_size": 352,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
    },
}

"""Rules for choosing tokens, for device programs, and ready-made programs.

A rule takes logits `[vocabulary]` and returns others; minus infinity rules a token out. Rules are
put together in a program of one's own::

    from inferlet import device, samplers

    @device.program
    def mine(logits, state):
        logits = samplers.repetition_penalty(logits, 1.2)
        return device.draw(samplers.top_p(logits / state.temperature, 0.9))

    context.generate(mine(temperature=0.7))

Numbers may be Python's, which make another program for each value, or of the state. The server has
their texts, `pie_py/device_programs/rules/`.
"""

from __future__ import annotations

from collections.abc import Sequence

from inferlet._generated import sampler_rules
from inferlet._generated.sampler_rules import *  # noqa: F403
from inferlet.device import DeviceProgram

__all__ = [
    "dola",
    "entropy_temperature",
    "gumbel_watermark",
    "mirostat",
    "padded",
    "synthid",
    "tempered",
]
__all__ += sampler_rules.__all__

# Whole programs: what they are given is in `pie_py/device_programs/rules/programs.py`.
tempered = DeviceProgram("tempered")  # temperature=0.7, p=0.9
mirostat = DeviceProgram("mirostat")  # mu=10.0, tau=5.0, rate=0.1
entropy_temperature = DeviceProgram("entropy_temperature")  # temperature=1.0, theta=1.0
gumbel_watermark = DeviceProgram("gumbel_watermark")  # temperature=1.0, key=42
dola = DeviceProgram("dola")  # temperature=0.0, beside `layers=layers.early(at, hidden)`
synthid = DeviceProgram("synthid")  # temperature=1.0, key=42


def padded(sequences: Sequence[Sequence[int]]) -> list[list[int]]:
    """Sequences of tokens as lists of one length, with -1 before the shorter ones: as
    `banned_sequences` takes them.
    """
    size = max(map(len, sequences))
    return [[-1] * (size - len(one)) + list(one) for one in sequences]

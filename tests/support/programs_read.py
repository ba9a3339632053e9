"""Device programs as the server reads them, without one."""

from __future__ import annotations

import json
import linecache
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from inferlet import Sampler
from inferlet.device import Attend, ProgramSampler
from pie_control.api.device_programs import Chosen, read_parameters
from pie_control.api.sample import SamplerCalls
from pie_control.device_programs.reading import KnownPrograms, read
from pie_control.instances.instance import Instance
from pie_py.device_programs.bound import Bound, bind
from pie_py.device_programs.program import program_for
from pie_py.wire.device_programs import packed
from pie_py.wire.plan import SetSampler
from support.model_rig import ints

_known = KnownPrograms(None)  # type: ignore[arg-type] # read here


def chosen_by(sampler: Sampler | ProgramSampler | Attend) -> Chosen:
    """What a sampler's program is read from, and its values."""
    if isinstance(sampler, Attend):
        found = read_parameters(json.dumps({"attend": sampler.to_dict()})).attend
    else:
        found = read_parameters(sampler.to_json()).program
    assert found is not None
    return found


def text_of(sampler: Sampler | ProgramSampler | Attend) -> str:
    """The canonical text of a sampler's program."""
    return read(chosen_by(sampler).key)[0]


def values_of(sampler: Sampler | ProgramSampler | Attend) -> dict[str, Any]:
    """What its program is given, as `bind` takes it."""
    return chosen_by(sampler).values


def create_sampler(instance: Instance, queue: int, parameters: str) -> int:
    """`create-sampler`, with programs that are read here."""
    for key in read_parameters(parameters).keys:
        if _known.find(key) is None:
            _known._keep(key, read(key))
    handle: int = SamplerCalls(_known, None, None).create_sampler(  # type: ignore[arg-type]
        instance, queue, parameters
    )
    return handle


def bound_by(sampler: Sampler | ProgramSampler | Attend, vocabulary: int) -> Bound:
    """A sampler's program with its values, for a model of so many tokens."""
    return bind(program_for(text_of(sampler), vocabulary), values_of(sampler), vocabulary)


def set_samplers(
    samplers: Sequence[Sampler | ProgramSampler],
    vocabulary: int,
    *,
    slots: Sequence[int] = (),
    seeds: Any = None,
    rows: Sequence[int] = (),
    attends: Sequence[Attend] = (),
) -> SetSampler:
    """A worker's message of these samplers: in the first slots, with seeds `[n, 2]` of zeros, and
    without rows of remembered tokens, unless others are named.
    """
    count = len(samplers)
    bound = [bound_by(one, vocabulary) for one in samplers]
    return SetSampler(
        samplers=ints(slots or range(count)),
        seeds=np.zeros((count, 2), np.uint32) if seeds is None else np.asarray(seeds, np.uint32),
        rows=ints(rows or [-1] * count),
        **packed(bound, [bound_by(one, vocabulary) for one in attends]),
    )


def line_named(message: str) -> str:
    """The line of a file that a message names."""
    found = re.search(r"(\S+):(\d+):\d+: ", message)
    assert found is not None, message
    return linecache.getline(found[1], int(found[2]))

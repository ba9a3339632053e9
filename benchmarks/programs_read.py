"""Device programs as the server reads them, without one."""

from __future__ import annotations

import json

from inferlet import Sampler
from inferlet.device import Attend, ProgramSampler
from pie_control.api.device_programs import bound_program, read_parameters
from pie_control.device_programs.reading import read
from pie_py.device_programs.bound import Bound
from pie_py.device_programs.recording import Recorded


def bound(sampler: Sampler | ProgramSampler | Attend, vocabulary: int) -> Bound:
    """A program with its values, for a model of so many tokens."""
    if isinstance(sampler, Attend):
        found = read_parameters(json.dumps({"attend": sampler.to_dict()})).attend
    else:
        found = read_parameters(sampler.to_json()).program
    assert found is not None
    text, places = read(found.key)
    return bound_program(Recorded(text, tuple(places)), found.values, vocabulary)

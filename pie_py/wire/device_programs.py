"""Device programs of samplers as arrays of `SetSampler`, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pie_py.device_programs.bound import Bound
from pie_py.device_programs.program import ProgramFault, program_for
from pie_py.wire.plan import Int32, SetSampler, States, Uint32, WriteState


def packed(programs: Sequence[Bound], attends: Sequence[Bound | None] = ()) -> dict[str, Any]:
    """The programs of samplers `[n]`, and of the stage `attend` `[n]` if some have any; each text
    once.
    """
    both = [*zip(programs, attends or [None] * len(programs), strict=True)]
    numbers: dict[str, int] = {}
    for bound in (one for pair in both for one in pair if one is not None):
        numbers.setdefault(bound.program.text, len(numbers))
    texts = [text.encode() for text in numbers]
    given = [b"" if one is None else one.values for pair in both for one in pair]
    which = [[-1 if one is None else numbers[one.program.text] for one in pair] for pair in both]
    return {
        "programs": np.array(which, np.int32).reshape(-1, 2),
        "text_lengths": np.array([len(text) for text in texts], np.int32),
        "texts": _words(texts),
        "given_lengths": np.array([len(values) for values in given], np.int32).reshape(-1, 2),
        "given": _words(given),
    }


def unpacked(batch: SetSampler, vocabulary: int) -> tuple[list[Bound], list[Bound | None]]:
    """The programs of a batch's samplers, and those of the stage `attend`.

    Raises:
        ProgramFault: the arrays do not go together, or a text is no program that may run.
    """
    wanted = (batch.samplers.size, 2)
    shapes = [batch.programs.shape, batch.given_lengths.shape]
    if shapes != [wanted, wanted] or batch.text_lengths.ndim != 1:
        raise ProgramFault(f"programs in arrays {shapes} of {wanted[0]} samplers")
    texts = [part.decode(errors="replace") for part in _parts(batch.texts, batch.text_lengths)]
    programs = [program_for(text, vocabulary) for text in texts]
    given = _parts(batch.given, batch.given_lengths.reshape(-1))
    if ((batch.programs < (0, -1)) | (batch.programs >= len(programs))).any():
        raise ProgramFault(f"a program that is none of {len(programs)}")
    found: tuple[list[Any], list[Any]] = ([], [])
    for i, (number, values) in enumerate(zip(batch.programs.flat, given, strict=True)):
        bound = None if number < 0 else Bound(programs[number], values)
        if bound is not None and bound.program.attends != bool(i % 2):
            raise ProgramFault("a program of the other stage")
        if bound is not None and len(values) != bound.program.given_bytes(vocabulary):
            raise ProgramFault(f"{len(values)} bytes of values for a program that has others")
        found[i % 2].append(bound)
    return found


def packed_states(values: Sequence[bytes]) -> States:
    """The state of samplers."""
    return States(np.array([len(each) for each in values], np.int32), _words(values))


def unpacked_states(states: States | WriteState) -> list[bytes]:
    """The state of samplers, or values of a name of each.

    Raises:
        ProgramFault: the arrays do not go together.
    """
    return _parts(states.values, states.lengths)


def _words(parts: Sequence[bytes]) -> Uint32:
    return np.frombuffer(b"".join(part + bytes(-len(part) % 4) for part in parts), np.uint32)


def _parts(words: Uint32, lengths: Int32) -> list[bytes]:
    sizes = -(-lengths.astype(np.int64) // 4)
    if (lengths < 0).any() or int(sizes.sum()) != words.size:
        raise ProgramFault(f"{words.size} words of texts or values, not {int(sizes.sum())}")
    ends = np.cumsum(sizes)
    return [
        words[end - size : end].tobytes()[:length]
        for end, size, length in zip(ends.tolist(), sizes.tolist(), lengths.tolist(), strict=True)
    ]

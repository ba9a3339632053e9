"""Random device programs, well-typed, of all operations; and rows to run them on."""

from __future__ import annotations

import math
import struct
from random import Random
from typing import Any

import numpy as np
import torch

from pie_inference.sampling.pool import Choices, SamplerPool
from pie_inference.sampling.remembered import SavedLogits
from pie_py.device_programs.language import OPERATIONS, VOCABULARY, Kind, Mistake, Type
from pie_py.device_programs.program import Program, ProgramFault, read_program
from pie_py.device_programs.recording import Recording, Tensor
from support.device_reference import Row

SIZE = 23  # of the vocabulary
ODD_FLOATS = [
    0.0,
    -0.0,
    math.inf,
    -math.inf,
    math.nan,
    1.0,
    -1.5,
    1e37,
    1e-30,
]  # sums of all are float32
ODD_INTS = [0, 1, -1, 2, 63, 64, -(2**63), 2**63 - 1, SIZE, 2**40]
STATE = {
    "a": Type(Kind.FLOAT),
    "b": Type(Kind.INT, (4,)),
    "c": Type(Kind.BOOL),
    "d": Type(Kind.FLOAT, (3, 4)),
    "e": Type(Kind.FLOAT, (4,)),
}
_SELDOM = {
    "matvec": ("d", "e"),
    "nucleus": ("e", "a"),
    "nucleus_by": ("e", "a", "e"),
}  # operands that seldom go together
_TRIES = 12  # operands that may not go with an operation


def random_program(chance: Random, length: int, only: frozenset[str] | None = None) -> Program:
    """A program of about so many operations.

    Args:
        chance: decides.
        length: operations to try.
        only: names of operations; all by default.
    """
    recording = Recording(STATE, attends=False)
    pool = [recording.add("logits"), recording.add("step")]
    pool += [recording.read(name) for name in STATE]
    pool += [recording.add(name) for name in ("counts", "given")]
    names = sorted(set(OPERATIONS) - {"state"} if only is None else only)
    for _ in range(length):
        name = chance.choice(names)
        for _ in range(_TRIES):
            operands = [chance.choice(pool) for _ in range(OPERATIONS[name].operands)]
            if name in _SELDOM:
                operands = [recording.read(each) for each in _SELDOM[name]]
            try:
                attributes = _attributes(chance, name, operands)
                pool.append(recording.add(name, *operands, attributes=attributes))
            except Mistake:
                continue
            break
    token = _token(recording, chance.choice(pool))
    for name, of in STATE.items():
        fitting = [one for one in pool if one.type == of]
        if chance.random() < 0.7:
            recording.assign(name, chance.choice(fitting))
    program = read_program(recording.finish(token).text)
    try:
        program.check_fits(SIZE)
    except ProgramFault:
        return random_program(chance, length, only)
    return program


def _token(recording: Recording, of: Tensor) -> Tensor:
    """A number from any value."""
    while of.type.shape:
        if of.type.kind is Kind.BOOL:
            of = recording.add("cast", of, attributes=(Kind.INT,))
        of = recording.add("argmax", of)
    if of.type.kind is Kind.INT:
        return of
    return recording.add("cast", of, attributes=(Kind.INT,))


def _attributes(chance: Random, name: str, operands: list[Tensor]) -> list[int]:
    match name:
        case "constant":
            kind = chance.choice(list(Kind))
            if kind is Kind.FLOAT:
                value = chance.choice([*ODD_FLOATS, chance.gauss(0, 2)])
                return [kind, struct.unpack("<I", struct.pack("<f", value))[0]]
            return [kind, chance.randrange(2) if kind is Kind.BOOL else chance.randrange(-70, 70)]
        case "beside":
            return [chance.randrange(2)]
        case "newest" | "top" | "repeats":
            return [chance.randint(1, 5)]
        case "iota":
            return [chance.choice([VOCABULARY, 1, 3, 4])]
        case "cast":
            return [chance.choice(list(Kind))]
        case "slice":
            start = chance.randrange(3)
            return [start, start + chance.randint(1, 2)]
        case "random" | "exponential":
            return [chance.choice([0, 1, 7])]
        case "reshape":
            shape = operands[0].type.shape
            return [*chance.choice([(1, *shape), (*shape, 1), shape[::-1], (12,), (2, 2)])]
    return []


def random_row(chance: Random) -> Row:
    """What a row of a step has, odd numbers among it."""
    logits = [chance.choice([-math.inf, 0.0, *[chance.gauss(0, 3)] * 6]) for _ in range(SIZE)]
    return Row(
        logits=[struct.unpack("<f", struct.pack("<f", x))[0] for x in logits],
        newest=[chance.randrange(SIZE) for _ in range(chance.randrange(7))],
        counts=[chance.choice([0, 0, 1, 5]) for _ in range(SIZE)],
        given=[chance.random() < 0.3 for _ in range(SIZE)],
        seed=chance.randrange(2**64),
        step=chance.randrange(1000),
        beside=[
            [struct.unpack("<f", struct.pack("<f", chance.gauss(0, 3)))[0] for _ in range(SIZE)]
            for _ in range(2)
        ],
    )


def random_state(chance: Random) -> dict[str, Any]:
    """Values of `STATE`."""
    return {name: _value(chance, of.kind, of.shape) for name, of in STATE.items()}


def _value(chance: Random, kind: Kind, shape: tuple[int, ...]) -> Any:
    if shape:
        return [_value(chance, kind, shape[1:]) for _ in range(shape[0])]
    if kind is Kind.FLOAT:
        value = chance.choice([*ODD_FLOATS, *[chance.gauss(0, 2)] * 6])
        return struct.unpack("<f", struct.pack("<f", value))[0]
    if kind is Kind.INT:
        return chance.choice([*ODD_INTS, *[chance.randrange(-5, 30)] * 6])
    return chance.random() < 0.5


def choose(
    pool: SamplerPool, samplers_: list[int], steps: list[int], logits: torch.Tensor | None = None
) -> list[int]:
    """The tokens that the programs of some samplers choose; by default of logits that favour 7."""
    if logits is None:
        logits = torch.zeros(len(samplers_), SIZE)
        logits[:, 7] = 1.0
    choices = Choices(
        np.array(samplers_, np.int32),
        np.array(steps, np.uint32),
        np.zeros(0, np.int32),
        SavedLogits(pool.vocabulary, pool.device),
    )
    return [int(token) for token in pool.choose(choices, logits)]

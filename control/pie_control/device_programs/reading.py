"""Device programs that are read: the job of a confined process, and what is known already."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cachetools import LRUCache

from pie_control.errors import invalid
from pie_control.fairness import Owner
from pie_py.device_programs.language import Kind, Type
from pie_py.device_programs.library import programs, rule_text
from pie_py.device_programs.program import ProgramFault
from pie_py.device_programs.reader import read_texts
from pie_py.device_programs.recording import Recorded
from pie_py.device_programs.scope import Text
from pie_py.wire.plan import ModelDescription

if TYPE_CHECKING:
    from pie_control.confined.pool import ConfinedPool

OF_FIELDS = "sampler"  # the program of a sampler's fields: inferlets give these, and no name


def key_of(
    program: str | Sequence[tuple[str, int, str]],
    constants: Mapping[str, Any],
    types: Mapping[str, Type],
    *,
    attends: bool,
) -> str:
    """The source of a program, as a text: its name in the library or its texts, its constants,
    and the types of what it is given.
    """
    kinds = {name: [of.kind, list(of.shape)] for name, of in types.items()}
    return json.dumps([program, constants, kinds, attends])


def is_named(key: str) -> bool:
    """True for a program that is given by its name."""
    return key.startswith('["')


def is_of_fields(key: str) -> bool:
    """True for the program of a sampler's fields, whose text and constants are the server's."""
    return key.startswith(f'["{OF_FIELDS}",')


def with_text(key: str, text: Text) -> str:
    """The key of a program whose text, and not its name, is given."""
    return json.dumps([[text], *json.loads(key)[1:]])


def in_layers(
    key: str, at: Sequence[int], facts: ModelDescription, *, prompt: bool | str = False
) -> str:
    """The key of a program that runs before some layers of a model, with what it is told of that;
    layers are counted from the end if they are negative, and a `prompt`'s inputs go through it too,
    or its "last" one.

    Raises:
        ApiError: `invalid-argument`, there is no such layer.
    """
    program, constants, *rest = json.loads(key)
    for each in at:
        if not -facts.layers <= each < facts.layers:
            raise invalid(f"at: there is no layer {each}, but 0 to {facts.layers - 1}")
    told = {"at": [each % facts.layers for each in at], "prompt": 2 if prompt == "last" else prompt}
    sizes = {"hidden": facts.hidden_size, "vocabulary": facts.vocab_size}
    return json.dumps([program, {**constants, **told, **sizes}, *rest])


def name_of(key: str) -> str:
    """The name of a program that is not the library's; empty for one of the library, or a text."""
    program = json.loads(key)[0] if is_named(key) else ""
    return "" if program in programs() else program


def read(key: str) -> tuple[str, list[str]]:
    """Reads a program: its canonical text, and the place in the source of each node.

    Raises:
        ApiError: `invalid-argument`, with the place.
    """
    program, constants, kinds, attends = json.loads(key)
    types = {name: Type(Kind(kind), tuple(shape)) for name, (kind, shape) in kinds.items()}
    try:
        texts = (
            [rule_text(program)] if isinstance(program, str) else [Text(*one) for one in program]
        )
        found = read_texts(texts, constants, types, attends=attends)
    except ProgramFault as error:
        raise invalid(f"device program: {error}") from None
    return found.text, list(found.places)


_KEPT = 8 << 20  # characters of keys, canonical texts and places


class KnownPrograms:
    """Programs of all users: what one gives is the same for all."""

    def __init__(self, confined: ConfinedPool) -> None:
        self._confined = confined
        self._kept: LRUCache[str, Recorded] = LRUCache(_KEPT, getsizeof=_characters)

    def find(self, key: str) -> Recorded | None:
        """A program that was read before, or that of a sampler's fields, which is read now: others
        have constants of a stranger's.

        Raises:
            ApiError: `invalid-argument`, with the place in the text.
        """
        found: Recorded | None = self._kept.get(key)
        return self._keep(key, read(key)) if found is None and is_of_fields(key) else found

    async def read(self, owner: Owner, key: str) -> None:
        """Has a program read by a confined process; `find` gives it then.

        Raises:
            ApiError: `invalid-argument`, with the place in the text; `limit-exceeded`.
        """
        self._keep(key, await self._confined.call(owner, "the device program", read, key))

    def _keep(self, key: str, answer: tuple[str, list[str]]) -> Recorded:
        text, places = answer
        found = Recorded(text, tuple(places))
        if _characters(found) + len(key) < _KEPT:
            self._kept[key] = found
        return found


def _characters(of: Recorded) -> int:
    return len(of.text) + sum(map(len, of.places)) + 1024

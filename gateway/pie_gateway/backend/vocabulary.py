"""The tokens of a model: their bytes, and which are special."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import cached_property
from itertools import pairwise

import msgspec

from pie_gateway.problems import of_client, unsupported
from pie_py.client import Client, ClientError

_Described = tuple[str, list[tuple[str, int]], list[str], list[str]]


class Vocabulary:
    """The tokens of a model."""

    def __init__(
        self,
        special: list[tuple[str, int]],
        tokens: list[bytes],
        arguments: Collection[str] = (),
        markers: Collection[str] = (),
    ) -> None:
        self.special = dict(special)  # ids by text
        self.tokens = tokens  # bytes by id
        self.arguments = frozenset(arguments)  # what the chat template reads beside messages
        self.markers = frozenset(markers)  # the added tokens that stand in the chat template

    def bytes_of(self, token: int) -> bytes:
        """The bytes of a token; none of an id that no token has."""
        return self.tokens[token] if token < len(self.tokens) else b""

    def text_of(self, token: int) -> str:
        """A token as text; what is no whole character shows as U+FFFD."""
        return self.bytes_of(token).decode(errors="replace")

    def check(self, field: str, tokens: Iterable[int], rows: int = 0) -> None:
        """Refuses ids that no token has, nor one of the model's rows, of which those that fill a
        vocabulary up have no text. Raises `Problem`: 400, naming the request's field.
        """
        size = max(len(self.tokens), rows)
        if (wrong := next((token for token in tokens if token >= size), None)) is not None:
            raise unsupported(field, f"{wrong} is outside the vocabulary (0 to {size - 1})")

    @cached_property
    def ids(self) -> dict[bytes, int]:
        """Ids by bytes."""
        return {token: number for number, token in enumerate(self.tokens)}

    def id_of(self, text: str) -> int | None:
        """The token of this text, special or added; None if no token is it."""
        return self.special.get(text, self.ids.get(text.encode()))

    def hidden(self, shown: Collection[str] = ()) -> list[tuple[int, int]]:
        """Ranges of the special tokens, first and last, without those of these texts."""
        ids = sorted(number for text, number in self.special.items() if text not in shown)
        if not ids:
            return []
        breaks = [(a, b) for a, b in pairwise(ids) if b != a + 1]
        firsts = [ids[0], *(b for _, b in breaks)]
        lasts = [*(a for a, _ in breaks), ids[-1]]
        return list(zip(firsts, lasts, strict=True))


async def read_vocabulary(client: Client, program: str, model: str) -> Vocabulary:
    """Has the program describe a model's tokens. Raises `Problem`: the server refuses."""
    request = msgspec.json.encode({"model": model, "describe": True}).decode()
    special: list[tuple[str, int]] = []
    arguments: list[str] = []
    markers: list[str] = []
    tokens: list[bytes] = []
    try:
        instance = await client.launch(program, [request])
        async for message in instance:
            if isinstance(message, str):
                _, special, arguments, markers = msgspec.json.decode(message, type=_Described)
            else:
                tokens += _split(message)
        await instance.result()
    except ClientError as error:
        raise of_client(error) from None
    return Vocabulary(special, tokens, arguments, markers)


def _split(message: bytes) -> Iterable[bytes]:
    """The tokens of a message in which each follows its length, four bytes."""
    at = 0
    while at < len(message):
        start = at + 4
        at = start + int.from_bytes(message[at:start], "little")
        yield message[start:at]

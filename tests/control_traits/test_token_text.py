"""Text of tokens by the server: what the SDKs make of the same tokens, whatever comes at once."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from inferlet._stream import StopStrings, TextDecoder
from pie_control.models.tokenizer import TokenText

# Tokens are bytes: those of whole characters, of broken ones, and letters.
TOKENS = st.lists(
    st.sampled_from([*b"abc", *"é😀�".encode(), 0x80, 0xC3, 0xE2, 0xF0, 0xFF]), max_size=24
)


def decode(tokens: list[int]) -> str:
    return bytes(tokens).decode(errors="replace")


def of_sdk(before: list[int], tokens: list[int], ends: list[str]) -> tuple[str, int]:
    """The text of tokens and how many of them it took, as the SDK has it."""
    decoder, stops = TextDecoder(decode, before), StopStrings(ends)
    pieces = []
    for count, token in enumerate(tokens, 1):
        text, found = stops.feed(decoder.feed(token))
        pieces.append(text)
        if found:
            return "".join(pieces), count
    text, found = stops.feed(decoder.finish())
    rest = "" if found else stops.finish()
    return "".join([*pieces, text, rest]), len(tokens)


@given(
    before=TOKENS,
    tokens=TOKENS,
    ends=st.lists(st.text("abcé😀", min_size=1, max_size=3), max_size=3),
    cuts=st.lists(st.integers(0, 24), max_size=4),
)
def test_text_is_that_of_the_sdk(
    before: list[int], tokens: list[int], ends: list[str], cuts: list[int]
) -> None:
    text = TokenText(lambda token: bytes([token]), before, ends, [])
    edges = [0, *sorted(cuts), len(tokens)]
    told, taken = "", 0
    for first, last in itertools.pairwise(edges):
        piece, count = text.feed(tokens[first:last])
        told, taken = told + piece, taken + count
        if text.is_ended:
            break
    else:
        told += text.finish()
    assert (told, taken) == of_sdk(before, tokens, ends)


def test_tokens_without_text_and_the_string_that_was_found() -> None:
    text = TokenText(lambda token: bytes([token]), [], ["bc", "b", "bcd"], [ord("x"), 2])
    assert text.feed(b"axyx") == ("a", 4)
    assert text.feed(b"xbcd") == ("", 2)
    assert text.found == 1
    text = TokenText(lambda token: b"bcd", [], ["b", "bcd", "bc"], [])
    assert text.feed(b"b") == ("", 1)
    assert text.found == 1

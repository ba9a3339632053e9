"""The parts of the SDK that need no server: sampling, streaming text, stop strings, spans."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asynclm.cml.monitor import Monitor
from inferlet import Context, Grammar, NotInServerError, Sampler, runtime
from inferlet._pages import addresses, drop, share, spans
from inferlet._stream import BROKEN, ROUND, TIMES, StopStrings, TextDecoder, goes_round


def test_a_sampler_is_its_parameters() -> None:
    sampler = Sampler.top_p(0.8, 0.9, seed=-1, repetition_penalty=1.2, logit_bias={3: None})
    assert json.loads(sampler.to_json()) == {
        "temperature": 0.8,
        "top_p": 0.9,
        "seed": 2**64 - 1,
        "repetition_penalty": 1.2,
        "logit_bias": {"3": None},
    }
    assert sampler.seeded(None) == Sampler(
        temperature=0.8, top_p=0.9, repetition_penalty=1.2, logit_bias={3: None}
    )
    assert sampler.seeded(None) != sampler
    with pytest.raises(TypeError, match="no parameter temprature"):
        Sampler(temprature=1.0)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"no subclasses.*context\.generate\(choose=rule\)"):
        type("Own", (Sampler,), {})


def by_bytes(tokens: list[int]) -> str:
    return bytes(tokens).decode("utf-8", "replace")


@given(st.text(max_size=80), st.text(max_size=20))
def test_streamed_text_is_the_text(before: str, text: str) -> None:
    decoder = TextDecoder(by_bytes, list(before.encode()))
    pieces = [decoder.feed(byte) for byte in text.encode()]
    assert "".join(pieces) + decoder.finish() == text
    assert all(BROKEN not in piece for piece in pieces) or BROKEN in text


def by_rows(tokens: list[int]) -> str:
    """As tokenizers with byte fallback: one wrong byte spoils the whole row."""
    try:
        return bytes(tokens).decode()
    except UnicodeDecodeError:
        return BROKEN * len(tokens)


def test_a_broken_sequence_leaves_the_character_after_it_whole() -> None:
    decoder = TextDecoder(by_bytes)
    pieces = [decoder.feed(b) for b in b"a\xf0\x9f\xf0\x9f\x98\x80b"]
    assert pieces == ["a", "", "", "", "", "", BROKEN + "\N{GRINNING FACE}", "b"]
    assert decoder.finish() == ""


PIECES = st.sampled_from(
    [b"a", b"\xc3", b"\xa9", b"\xf0\x9f", b"\x98", b"\x80", b"\xff", b"\x80\xe4"]
)


@given(st.lists(PIECES, max_size=60))
def test_streamed_bytes_are_decoded_as_the_whole(tokens: list[bytes]) -> None:
    decoder = TextDecoder(lambda some: b"".join(tokens[i] for i in some).decode("utf-8", "replace"))
    pieces = [decoder.feed(i) for i in range(len(tokens))]
    assert "".join(pieces) + decoder.finish() == b"".join(tokens).decode("utf-8", "replace")


@given(st.text("a\u00e9\u4f60\U0001f600", min_size=1, max_size=30), st.data())
def test_a_character_that_begins_in_the_context_is_whole(text: str, data: st.DataObject) -> None:
    tokens = list(text.encode())
    cut = data.draw(st.integers(0, len(tokens) - 1))
    decoder = TextDecoder(by_bytes, tokens[:cut])
    pieces = [decoder.feed(byte) for byte in tokens[cut:]]
    whole = len(bytes(tokens[:cut]).decode("utf-8", "ignore"))
    assert "".join(pieces) + decoder.finish() == text[whole:]


@given(st.text("a\u00e9\u4f60\U0001f600", max_size=60))
def test_rows_of_bytes_are_not_cut_within_a_character(text: str) -> None:
    decoder = TextDecoder(by_rows)
    assert "".join(decoder.feed(byte) for byte in text.encode()) == text


def test_nothing_is_put_in_within_a_character_that_follows_text() -> None:
    tokens = [b"a\xc3", b"\xa9"]
    codec = SimpleNamespace(
        decode=lambda some: b"".join(tokens[i] for i in some).decode("utf-8", "replace")
    )
    for is_text in (False, True):
        dialect: Any = SimpleNamespace(
            by_token={}, markers={}, special={}, is_text=is_text, codec=codec
        )
        monitor = Monitor(dialect, [])
        monitor.feed(0)
        assert monitor.critical
        monitor.feed(1)
        assert not monitor.critical


def test_a_leading_space_depends_on_what_is_before() -> None:
    words = ["\u2581Paris", "\u2581is", "s"]

    def sentence_piece(tokens: list[int]) -> str:
        return "".join(words[t] for t in tokens).replace("\u2581", " ").removeprefix(" ")

    assert TextDecoder(sentence_piece).feed(0) == "Paris"
    assert TextDecoder(sentence_piece, [0]).feed(1) == " is"


@given(
    st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
    st.lists(st.text("abc", max_size=3), max_size=12),
)
def test_stop_strings(stops: list[str], pieces: list[str]) -> None:
    text = "".join(pieces)
    given_out = ""
    matcher = StopStrings(stops)
    found = False
    for piece in pieces:
        new, found = matcher.feed(piece)
        given_out += new
        if found:
            break
    places = [text.find(stop) for stop in stops if stop in text]
    if found:
        assert not any(stop in given_out for stop in stops)
        assert any(text.startswith(given_out + stop) for stop in stops)
    else:
        assert not places
        assert given_out + matcher.finish() == text


@pytest.mark.parametrize(
    "phrase", ["la femme, ", "a", "Ja.\n\n", "我不知道。", "word " * 40 + "end. ", "0 ", "-", "\n"]
)
def test_a_phrase_again_and_again_goes_round(phrase: str) -> None:
    """Cut anywhere, and whatever came before; not when it has begun to go on otherwise."""
    least = ROUND if any(map(str.isalpha, phrase)) else 2 * ROUND
    for before in ("", "L'Étoile, "):
        text = before + phrase * (1 + 2 * least // len(phrase))
        ends = [end for end in range(0, len(text), 7) if goes_round(text[:end])]
        assert min(ends) - least in range(len(before) + len(phrase) + 7)
        assert ends == list(range(min(ends), len(text), 7))
    assert not goes_round(text + "at last")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ha " * 100,
        "-" * 120 + "\n",
        "|---" * 20,
        "0.0, " * 300,
        "".join(f"{i}. An item of a list that is much like those before it\n" for i in range(99)),
        "".join(f"<tr><td>{i % 10}</td><td></td></tr>\n" for i in range(99)),
        ("A verse of four lines. " * 12 + "\n") * (TIMES - 1),
    ],
)
def test_what_repeats_itself_for_a_reason_does_not(text: str) -> None:
    assert not any(goes_round(text[:end]) for end in range(len(text) + 1))


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="at once"):
        StopStrings([""])


@given(st.lists(st.integers(0, 40), max_size=30))
def test_spans_there_and_back(pages: list[int]) -> None:
    assert addresses(spans(pages)) == pages


@given(st.lists(st.integers(0, 5), max_size=30, unique=True), st.integers(1, 4))
def test_shared_pages_are_freed_by_the_last_holder(pages: list[int], holders: int) -> None:
    counts: dict[int, int] = {}
    for _ in range(holders - 1):
        share(counts, pages)
    for _ in range(holders - 1):
        assert drop(counts, pages) == []
    assert drop(counts, pages) == pages
    assert counts == {}


def test_outside_a_server_calls_say_so() -> None:
    with pytest.raises(NotInServerError, match="pie-py run"):
        runtime.version()
    with pytest.raises(NotInServerError):
        Context(SimpleNamespace(name="x"))  # type: ignore[arg-type]


@pytest.mark.parametrize("options", ["yes", ["yes", 1], [b"yes"]])
def test_a_choice_is_between_texts(options: Any) -> None:
    with pytest.raises(TypeError, match=r"(a list of texts|text) is wanted"):
        Grammar.choice(options)

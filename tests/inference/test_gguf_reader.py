"""GGUF files that are damaged, by chance or on purpose."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.families import make_family
from support.gguf_files import Kind, write_gguf
from tokenizers import Tokenizer

from pie_inference.checkpoints import gguf_reader
from pie_inference.checkpoints.gguf_file import gguf_files, gguf_tensors
from pie_inference.checkpoints.gguf_reader import GgufFile
from pie_inference.errors import LoadError

ODD_NUMBERS = [0, 1, 2, 9, 255, 1 << 20, (1 << 31) - 1, 1 << 32, (1 << 63) - 1, (1 << 64) - 1]
PEAK = 64  # bytes of memory for a byte of the file, in objects of Python


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = make_family(tmp_path_factory.mktemp("gguf") / "model", "llama", head_dim=16)
    return write_gguf(folder, "llama", Kind.Q8_0).read_bytes()


@st.composite
def damages(draw: st.DrawFn) -> Callable[[bytes], bytes]:
    """Changes of a file: cut off, bytes and numbers that are others, a part twice."""
    at = draw(st.floats(0, 1, exclude_max=True))
    kind = draw(st.sampled_from(["cut", "byte", "number", "twice"]))
    value = draw(st.sampled_from(ODD_NUMBERS) | st.integers(0, (1 << 64) - 1))
    header = draw(st.booleans())

    def change(content: bytes) -> bytes:
        # Most of a header is tokens; its first part says the most.
        place = int(at * (900 if header else len(content)))
        if kind == "cut":
            return content[:place]
        new = {
            "byte": bytes([value & 255]),
            "number": struct.pack("<Q", value),
            "twice": content[place : place + 200] * 2,
        }[kind]
        end = place + (200 if kind == "twice" else len(new))
        return content[:place] + new + content[end:]

    return change


@given(st.lists(damages(), min_size=1, max_size=3))
@settings(
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_a_damaged_file_is_right_or_refused(
    whole: bytes, tmp_path: Path, changes: list[Callable[[bytes], bytes]]
) -> None:
    content = whole
    for change in changes:
        content = change(content)
    file = tmp_path / "model.gguf"
    file.write_bytes(content)
    tracemalloc.start()
    try:
        found = read_all(file)
        assert tracemalloc.get_traced_memory()[1] < PEAK * max(len(content), len(whole))
    finally:
        tracemalloc.stop()
    if isinstance(found, LoadError):
        assert str(file) in str(found)
    else:
        same_as_the_library(found, file)


def read_all(file: Path) -> GgufFile | LoadError:
    try:
        opened = GgufFile(file)
        for key in opened:
            opened[key]
        for name in opened.tensors:
            opened.numbers(name)
        Tokenizer.from_str(gguf_files(opened)["tokenizer.json"])
        gguf_tensors(file)
    except LoadError as error:
        return error
    return opened


def same_as_the_library(opened: GgufFile, file: Path) -> None:
    """Holds what was read to what llama.cpp's own library reads, if it does."""
    try:
        theirs = gguf.GGUFReader(file)
        fields = {key: field.contents() for key, field in theirs.fields.items()}
    except (ValueError, IndexError, KeyError, UnicodeDecodeError):
        return
    for key in opened:
        np.testing.assert_equal(opened[key], fields[key])
    for tensor in theirs.tensors:
        place = opened.tensors[tensor.name]
        assert place.shape == tuple(reversed(tensor.shape.tolist()))
        assert (opened.first + place.offset, place.size) == (tensor.data_offset, tensor.n_bytes)


def text(content: str) -> bytes:
    return struct.pack("<Q", len(content.encode())) + content.encode()


def entry(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def tensor(name: str, shape: list[int], kind: int = 0, offset: int = 0) -> bytes:
    sizes = b"".join(struct.pack("<Q", size) for size in shape)
    return text(name) + struct.pack("<I", len(shape)) + sizes + struct.pack("<IQ", kind, offset)


def head(tensors: int, entries: int, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, entries)


ONE = entry("a", 4, struct.pack("<I", 1))
LIST = 9


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "cannot be read"),
        (b"GGML" + bytes(60), r"is no GGUF.*\(byte 0\)"),
        (b"GGUF\x03", "4 bytes are to follow, but 1 do"),
        (head(0, 0, 1), "has version 1; versions 2 and 3 are read"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "begin with the highest byte"),
        (head(1 << 40, 0), "has 1099511627776 entries of tensors"),
        (head(0, 1 << 63), "entries of metadata"),
        (head(0, 2) + ONE + ONE, "has 'a' twice in its metadata"),
        (head(0, 1) + entry("a", 13, b""), "no kind of value has the number 13"),
        (head(0, 1) + entry("a", 7, b"\x02"), "neither true nor false"),
        (head(0, 1) + struct.pack("<Q", 1 << 62), "a name of 4611686018427387904 bytes"),
        (head(0, 1) + struct.pack("<Q", 1) + b"\xff" + bytes(9), "a text that is no UTF-8"),
        (head(0, 1) + entry("a", LIST, struct.pack("<IQ", 9, 1)), "a list of values of the kind 9"),
        (head(0, 1) + entry("a", LIST, struct.pack("<IQ", 8, 1 << 62)), "more than there can be"),
        (head(0, 1) + entry("a", LIST, struct.pack("<IQ", 4, 1 << 62)), "are to follow"),
        (
            head(0, 1) + entry("a", LIST, struct.pack("<IQQ", 8, 1, (1 << 64) - 1)),
            "are to follow, but",
        ),
        (head(2, 0) + tensor("x", [8]) * 2, "has the tensor 'x' twice"),
        (head(1, 0) + tensor("x", []), "gives 'x' 0 dimensions"),
        (head(1, 0) + tensor("x", [1] * 5), "gives 'x' 5 dimensions"),
        (head(1, 0) + tensor("x", [0]), r"gives 'x' the shape \[0\] of F32"),
        (head(1, 0) + tensor("x", [1 << 63, 2]), "gives 'x' the shape"),
        (head(1, 0) + tensor("x", [33], 2), r"the shape \[33\] of Q4_0"),
        (head(1, 0) + tensor("x", [256], 9), "'x' as Q8_1, which is not supported"),
        (head(1, 0) + tensor("x", [8], 99), "'x' as 99, which is not supported"),
        (head(1, 0) + tensor("x", [8]) + bytes(30), "ends before the tensor 'x' does"),
        (head(1, 0) + tensor("x", [8], offset=(1 << 64) - 32) + bytes(99), "ends before"),
        (
            head(2, 0) + tensor("x", [8]) + tensor("y", [8]) + bytes(99),
            "has 'y' where another tensor is",
        ),
        (head(1, 0) + tensor("x", [8], offset=1) + bytes(99), "has 'x' where another tensor is"),
        (
            head(0, 1) + entry("general.alignment", 5, struct.pack("<i", -8)),
            "has -8 as `general.al",
        ),
        (head(0, 1) + entry("general.alignment", 4, struct.pack("<I", 24)), "has 24 as `general"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_each_damage_has_its_words(content: bytes, words: str, tmp_path: Path) -> None:
    file = tmp_path / "odd.gguf"
    file.write_bytes(content)
    with pytest.raises(LoadError, match=rf"odd\.gguf.*{words}"):
        GgufFile(file)


def test_lists_are_read_when_they_are_asked_for(tmp_path: Path) -> None:
    numbers = struct.pack("<IQ3i", 5, 3, 1, -2, 3)
    texts = struct.pack("<IQ", 8, 2) + text("é") + text("")
    damaged = struct.pack("<IQQ", 8, 1, 1) + b"\xff"
    file = tmp_path / "lists.gguf"
    entries = [("numbers", numbers), ("texts", texts), ("damaged", damaged)]
    file.write_bytes(head(0, 3) + b"".join(entry(key, LIST, value) for key, value in entries))
    opened = GgufFile(file)
    assert list(opened) == ["numbers", "texts", "damaged"]
    assert opened["numbers"] == [1, -2, 3]
    assert opened["texts"] == ["é", ""]
    with pytest.raises(LoadError, match="no UTF-8 in the list 'damaged'"):
        opened["damaged"]
    assert opened.get("none") is None


def test_long_lists_of_texts_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_reader, "MAX_ITEMS", 5)
    lists = [entry(key, LIST, struct.pack("<IQ", 8, 3) + text("") * 3) for key in "ab"]
    file = tmp_path / "long.gguf"
    file.write_bytes(head(0, 2) + b"".join(lists))
    with pytest.raises(LoadError, match="a list of 3 texts, more than there can be"):
        GgufFile(file)

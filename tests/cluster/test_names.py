"""Ids of instances name node and incarnation, in one spelling each."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pie_cluster.config import NODE_NAME
from pie_cluster.directory.lives import Lives
from pie_cluster.directory.node import Life, life_of
from pie_cluster.wire.messages import program_key
from pie_control.errors import Refusal

lives = st.builds(Life, st.from_regex(NODE_NAME, fullmatch=True), st.integers(1, 1 << 53))
names = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,20}-[0-9a-f]{8}", fullmatch=True)


@given(names, lives)
def test_what_is_written_is_read_back(name: str, life: Life) -> None:
    assert life_of(f"{name}@{life}") == life_of(str(life)) == life


@given(st.text() | st.from_regex(r"[a-z-]{1,9}-[0-9a-f]{7,9}@+n[0-9]*\.[0-9]*\s?"))
@example("chat-1a2b3c4d")  # of a server without a cluster
@example("chat-1a2b3c4d@n7.3\n")
@example("x@n7.٣")
@example("two\nlines" * 1000)
def test_each_id_has_one_spelling(text: str) -> None:
    try:
        told = str(life_of(text))
    except Refusal as refusal:
        told, text = str(refusal), ""
    assert text.rpartition("@")[2] == told or "is no name of this cluster" in told
    assert len(told) < 300
    assert "\n" not in told


def test_a_number_has_53_bits() -> None:
    assert life_of(f"n7.{1 << 53}").incarnation == 1 << 53
    with pytest.raises(Refusal):
        life_of(f"n7.{(1 << 53) + 1}")


def test_numbers_of_lives_outlast_the_directory(tmp_path: Path) -> None:
    path = tmp_path / "lives"
    lives = Lives(path)
    assert lives.allot(2) == ["n1", "n2"]
    assert [lives.next("n1", 0), lives.next("n1", 0)] == [1, 2]
    again = Lives(path)
    assert again.next("n1", 0) == 3
    assert again.allot(1) == ["n3"]
    assert [Lives(path).next("n1", 0), Lives(path).allot(1)] == [4, ["n4"]]
    path.write_text("nothing")
    with pytest.raises(ValueError, match="put a copy back"):
        Lives(path)


def test_keys_keep_users_and_programs_apart() -> None:
    keys = [program_key("a", "bc"), program_key("ab", "c"), program_key("", "1:ab")]
    assert len(set(keys)) == len(keys)
    assert all(0 <= key < 1 << 63 for key in keys)
    assert program_key("a", "bc") == keys[0]

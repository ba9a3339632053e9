"""A journal's file: cut anywhere it has what stands before; damaged anywhere else it says so."""

from __future__ import annotations

import pytest

from pie_control.journal.file import DamagedJournal, framed, read_entries

ENTRIES = [{"program": "a"}, ["call", "session.send", None, True, "x" * 50], ["sent", b"id", "y"]]
WHOLE = b"".join(map(framed, ENTRIES))
STARTS = [len(b"".join(map(framed, ENTRIES[:count]))) for count in range(len(ENTRIES) + 1)]


def test_a_cut_file_has_the_entries_before() -> None:
    for size in range(len(WHOLE) + 1):
        count = sum(start <= size for start in STARTS) - 1
        assert read_entries(WHOLE[:size]) == (ENTRIES[:count], STARTS[count])
        assert read_entries(WHOLE[:size] + bytes(99))[0] in (ENTRIES[:count], ENTRIES)


@pytest.mark.parametrize("bit", [0, 3, 7])
def test_a_damaged_entry_is_no_cut(bit: int) -> None:
    for place in range(STARTS[-2]):
        data = bytearray(WHOLE)
        data[place] ^= 1 << bit
        with pytest.raises(DamagedJournal, match="is damaged"):
            read_entries(bytes(data))

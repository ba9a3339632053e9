"""What an instance has done over time: the newest spans, numbered, with dates."""

from __future__ import annotations

from pie_control.instances.timeline import SPARE, Timeline

EPOCH, BEGUN = 1_000_000, 1_000_003  # the date of the executor's 0, and of the launch


def test_spans_have_dates_and_the_first_begins_at_the_launch() -> None:
    timeline = Timeline(8)
    timeline.turn(None, 5, 6, "the server")
    timeline.add(batch := ("batch", "forward", 6, 9, 2, 3))
    timeline.add(batch)  # two commands of an instance in one batch
    timeline.turn("take-sample", 10, 12, "other programs")
    told = timeline.after(0, EPOCH, BEGUN)
    assert [(each["name"], each["begin_ns"] - EPOCH, each["end_ns"] - EPOCH) for each in told] == [
        ("launch", 3, 5),
        ("forward", 6, 9),
        ("take-sample", 6, 10),
    ]
    assert (told[1]["track"], told[1]["size"], told[1]["device_ns"]) == ("batch", 2, 3)
    assert timeline.wait_until(20, None, EPOCH, BEGUN)["name"] == "other programs"
    assert timeline.wait_until(20, "a tool", EPOCH, BEGUN)["end_ns"] == EPOCH + 20


def test_the_newest_are_kept_and_keep_their_numbers() -> None:
    timeline, most = Timeline(10), 10 + SPARE
    for at in range(500):
        if at % 2:
            timeline.turn(None, at, at, "the server")
        else:
            timeline.spans.append(("batch", "forward", at, at, 1, 1))  # as runs do
            timeline.trim()
        assert timeline.total == at + 1
        kept = timeline.after(0, 0, 0)
        assert min(at + 1, 10) <= len(kept) <= most
        assert [each["end_ns"] for each in timeline.after(at - 3, 0, 0)] == list(
            range(max(0, at - 3), at + 1)
        )
    assert timeline.size_bytes <= most * 250


def test_of_an_instance_that_has_ended_little_memory_is_taken() -> None:
    timeline = Timeline(100)
    for at in range(50):
        timeline.turn(None, at, at, "the server")
        timeline.add(("batch", "forward", at, at, 1, 1))
    told, size = timeline.after(3, EPOCH, BEGUN), timeline.size_bytes
    timeline.pack()
    assert timeline.after(3, EPOCH, BEGUN) == told
    assert timeline.size_bytes < size / 5
    timeline.add(("batch", "forward", 50, 51, 1, 1))  # was under way
    assert timeline.total == 101
    assert [each["end_ns"] - EPOCH for each in timeline.after(100, EPOCH, BEGUN)] == [51]

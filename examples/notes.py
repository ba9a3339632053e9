"""Keeps notes from run to run, in the user's store.

Run: pie-py run examples/notes.py -- "buy milk"         (adds a note; without one, lists them)
"""

from inferlet import store


def next_number(old: bytes | None) -> bytes:
    """Counts; two instances at once never get the same number."""
    return str(int(old or b"0") + 1).encode()


async def main(args: list[str]) -> str:
    """Adds the note, if there is one, and returns all notes."""
    if args:
        number = await store.update("notes/count", next_number)
        await store.set(f"notes/text/{int(number or 0):06}", " ".join(args))
    lines = []
    async for key in store.keys("notes/text/"):
        text = await store.get_text(key)
        if text is not None:
            lines.append(f"{int(key.rpartition('/')[2])}. {text}")
    return "\n".join(lines)

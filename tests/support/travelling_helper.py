"""A module of the caller's, which goes as a whole."""

STEP = 10


def shout(text: str) -> str:
    return text.upper()

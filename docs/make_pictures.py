"""Draws the pictures of the pages in SVG: `docs/pictures`.

    python docs/make_pictures.py

A test compares the files with what this draws. Boxes and arrows in two colours that are read on
white and on black; no fonts but the reader's.
"""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "pictures"
WIDTH = 760
LINE = "#7c8594"
ACCENT = "#c2571a"
SOFT = "#c2571a33"


class Picture:
    """An SVG that is drawn part by part; coordinates are pixels from the upper left corner."""

    def __init__(self, height: int, title: str) -> None:
        self._height = height
        self._title = title
        self._parts: list[str] = []

    def box(
        self, x: int, y: int, width: int, height: int, text: str = "", *, strong: bool = False
    ) -> None:
        """A box with a text in its middle, a line for each line of the text."""
        fill = SOFT if strong else "none"
        stroke = ACCENT if strong else LINE
        self._parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" fill="{fill}"'
            f' stroke="{stroke}" stroke-width="1.5"/>'
        )
        lines = text.split("\n") if text else []
        for number, line in enumerate(lines):
            middle = y + height / 2 + 5 + (number - (len(lines) - 1) / 2) * 18
            self.text(x + width / 2, middle, line)

    def text(self, x: float, y: float, text: str, *, anchor: str = "middle") -> None:
        """A line of text."""
        self._parts.append(
            f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(text)}</text>'
        )

    def arrow(self, x1: int, y1: int, x2: int, y2: int, text: str = "") -> None:
        """An arrow, with a text above its middle."""
        self._parts.append(
            f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{LINE}" stroke-width="1.5"'
            ' marker-end="url(#end)"/>'
        )
        if text:
            self.text((x1 + x2) / 2, (y1 + y2) / 2 - 6, text)

    def svg(self) -> str:
        """The file."""
        parts = "\n".join(self._parts)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self._height}"'
            f' role="img" font-family="sans-serif" font-size="14" fill="{LINE}">\n'
            f"<title>{escape(self._title)}</title>\n"
            '<defs><marker id="end" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7"'
            f' markerHeight="7" orient="auto"><path d="M0 0 8 4 0 8z" fill="{LINE}"/></marker>'
            f"</defs>\n{parts}\n</svg>\n"
        )


def program() -> Picture:
    """A server of prompts beside a server of programs."""
    drawn = Picture(250, "Prompts against programs")
    drawn.text(20, 24, "a server of prompts", anchor="start")
    drawn.box(20, 50, 150, 50, "your program")
    drawn.box(560, 50, 180, 50, "engine, KV cache")
    drawn.arrow(170, 58, 560, 58, "a prompt per step")
    drawn.arrow(560, 92, 170, 92)
    drawn.text(365, 110, "its text")
    drawn.text(20, 150, "pie_py", anchor="start")
    drawn.box(20, 176, 150, 50, "client")
    drawn.arrow(170, 201, 360, 201, "upload, launch")
    drawn.box(360, 160, 380, 82)
    drawn.box(380, 176, 150, 50, "your program", strong=True)
    drawn.box(570, 176, 150, 50, "engine, KV cache")
    drawn.arrow(530, 194, 570, 194)
    drawn.arrow(570, 210, 530, 210)
    return drawn


def pages() -> Picture:
    """Three forks of a context."""
    drawn = Picture(230, "Forks share pages")
    for number in range(3):
        x = 20 + 130 * number
        drawn.box(x, 85, 120, 44, f"page {number + 1}", strong=True)
    drawn.text(205, 155, "the prompt: computed once, held once")
    for number, text in enumerate(("fork a: page 4", "fork b: page 5", "fork c: page 6")):
        y = 20 + 65 * number
        drawn.box(520, y, 160, 44, text)
        drawn.arrow(400, 107, 520, y + 22)
    return drawn


def plan() -> Picture:
    """Commands of several queues in one plan."""
    drawn = Picture(270, "From queues to a plan")
    for number, (name, commands) in enumerate(
        (
            ("program A", ("forward", "sample")),
            ("program B", ("forward", "sample")),
            ("program C", ("copy", "forward")),
        )
    ):
        y = 30 + 80 * number
        drawn.text(20, y + 26, name, anchor="start")
        for at, command in enumerate(commands):
            drawn.box(110 + 100 * at, y, 90, 42, command)
        drawn.arrow(305, y + 21, 400, 130)
    drawn.box(400, 40, 150, 190)
    drawn.text(475, 30, "one plan")
    for number, text in enumerate(("copy C", "forward A B C", "sample A B")):
        drawn.box(412, 54 + 58 * number, 126, 46, text, strong=True)
    drawn.arrow(550, 135, 620, 135)
    drawn.box(620, 110, 120, 50, "worker")
    return drawn


def token() -> Picture:
    """The way of a token."""
    drawn = Picture(210, "The way of a token")
    names = ("worker", "control process", "inferlet", "client")
    for number, name in enumerate(names):
        drawn.box(20 + 200 * number, 80, 120, 50, name, strong=name == "inferlet")
    for number, text in enumerate(("tokens", "text", "message")):
        drawn.arrow(140 + 200 * number, 94, 220 + 200 * number, 94, text)
    for number, text in enumerate(("plans", "calls")):
        drawn.arrow(220 + 200 * number, 118, 140 + 200 * number, 118)
        drawn.text(180 + 200 * number, 136, text)
    drawn.text(20, 30, "one message per step, for all programs", anchor="start")
    drawn.text(20, 180, "The next plan is on its way before this one is done.", anchor="start")
    return drawn


PICTURES: tuple[Callable[[], Picture], ...] = (program, pages, plan, token)


def render() -> dict[str, str]:
    """The pictures by the names of their files."""
    return {f"{draw.__name__}.svg": draw().svg() for draw in PICTURES}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in render().items():
        (FOLDER / name).write_text(text, encoding="utf-8")

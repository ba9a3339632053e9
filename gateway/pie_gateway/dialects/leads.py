"""The text that a model may write before one that is held to a form: its thoughts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pie_gateway.backend.job import MARK
from pie_gateway.backend.vocabulary import Vocabulary
from pie_gateway.dialects import Dialect
from pie_gateway.dialects.families import Section


def opened(dialect: Dialect, tail: str, continued: str | None) -> Section | None:
    """The thought that a prompt leaves open: one that ends so, or that continues a message."""
    for each in dialect.sections:
        begin, end = each.begin.removeprefix(MARK), each.end.removeprefix(MARK)
        if each.is_call:
            continue
        if continued is None and tail.rstrip().endswith(begin):
            return each
        if continued is not None and continued.rfind(begin) > continued.rfind(end):
            return each
    return None


def leads(
    dialect: Dialect,
    words: Vocabulary,
    stops: Iterable[int],
    continued: str | None,
    *,
    thinks: bool,
) -> list[str]:
    """In turn how a prompt may end, and what then precedes the form, in Lark; the first that fits
    counts. A thought is any tokens but those that end it or the text. A model begins one itself if
    its chat template knows of them; one that is not to think closes what the prompt has opened.
    """
    ids = {text: token for token, text in dialect.marks.items()}
    if dialect.family.channels and ids:
        return ["", _channels(ids, stops, thinks=thinks)] if continued is None else []
    for each in dialect.sections:
        begin, end = each.begin.removeprefix(MARK), each.end.removeprefix(MARK)
        if each.is_call or begin not in ids or end not in ids:
            continue
        then = words.id_of(each.then) if each.then else None
        rest = f"<[{ids[end]}]> /\\n{{0,2}}/" + ("" if then is None else f" <[{then}]>?")
        rest = f"{_any([ids[end], *stops])} {rest}" if thinks else rest
        if continued is not None:
            return ["", rest] if opened(dialect, "", continued) is each else []
        begins = thinks and not words.markers.isdisjoint((begin, end))
        return [begin, rest, end, "", "", f"(<[{ids[begin]}]> {rest})?" if begins else ""]
    return []


def _channels(ids: dict[str, int], stops: Iterable[int], *, thinks: bool) -> str:
    """Messages of the channel `analysis`, and the header of one of the channel `final`."""
    channel, message, end, start = (
        f"<[{ids[f'<|{name}|>']}]>" for name in ("channel", "message", "end", "start")
    )
    text = _any([*ids.values(), *stops])
    analysis = f'({channel} "analysis" {message} {text} {end} {start} "assistant")*'
    return f'{analysis if thinks else ""} {channel} "final" {message}'


def _any(but: Sequence[int]) -> str:
    return f"<[^{','.join(map(str, dict.fromkeys(but)))}]>*"

"""The table of families: what the models that are served write around calls and thoughts.

The family shows in the vocabulary: what it writes around a call is a token of its own. A model
whose chat template tells of no tools has the row `TOLD`, whose form the gateway asks for.
`tests/gateway/test_dialects.py` holds `docs/http.md` to this table.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True)
class Section:
    """A part of a text between markers, or to its end; the token `then` may begin what follows."""

    begin: str
    end: str
    is_call: bool
    then: str = ""


CALLS = Section("", "", is_call=True)  # a text that is held to calls
THOUGHTS = (
    Section("<think>", "</think>", is_call=False),
    Section("[THINK]", "[/THINK]", is_call=False),
    Section("<|START_THINKING|>", "<|END_THINKING|>", False, "<|START_RESPONSE|>"),
)


@dataclass(frozen=True)
class Family:
    """A row."""

    name: str  # of the models
    token: str  # one that their vocabularies have
    # The marked part that calls stand in; None where a text itself is a call or none.
    calls: Section | None
    inner: tuple[str, ...] = ()  # further tokens that stand in calls
    # How a text may begin that is a call without a marker: with these characters, or `name` for a
    # function's name in a line of its own.
    bare: str = ""
    channels: bool = False  # whether all that is said stands in channels
    # Letters and digits that the template wants of a call's id; 0 if it wants nothing.
    id_length: int = 0


def _marked(begin: str, end: str = "") -> Section:
    return Section(begin, end, is_call=True)


TOLD = Family(
    "others, whose template tells of no tools", "", _marked("<tool_call>", "</tool_call>")
)
FAMILIES = (
    Family(
        "gpt-oss",
        "<|channel|>",
        None,
        ("<|channel|>", "<|message|>", "<|constrain|>", "<|start|>", "<|end|>", "<|call|>"),
        channels=True,
    ),
    Family(
        "DeepSeek V3, R1",
        "<｜tool▁calls▁begin｜>",
        _marked("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
        ("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"),
    ),
    Family(
        "Command R7B, Command A", "<|START_ACTION|>", _marked("<|START_ACTION|>", "<|END_ACTION|>")
    ),
    Family(
        "Mistral", "[TOOL_CALLS]", _marked("[TOOL_CALLS]"), ("[ARGS]", "[CALL_ID]"), id_length=9
    ),
    Family("Llama 3.1 and later", "<|python_tag|>", _marked("<|python_tag|>"), bare="{["),
    Family("Phi 4 mini, Granite 3", "<|tool_call|>", _marked("<|tool_call|>", "<|/tool_call|>")),
    Family(
        "Qwen, Hermes, SmolLM 3, Granite 4, GLM 4.5 and later",
        "<tool_call>",
        _marked("<tool_call>", "</tool_call>"),
        ("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    ),
    Family("GLM 4", "<|observation|>", None, bare="name"),
)


def family_of(tokens: Collection[str], *, tells: bool) -> Family:
    """The family of a model, by its tokens, and whether its chat template tells of tools."""
    return next((each for each in FAMILIES if tells and each.token in tokens), TOLD)

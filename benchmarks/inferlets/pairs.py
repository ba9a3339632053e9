"""Pairs to compare: programs and scripts of the same logic, with the options that both take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

QUESTION = "Where does the neighbour of the brother of Edgar live?"
NUMBERS = [12, 34, 56, 78, 11, 23, 45, 67]
PRINT = r"print\([1-9][0-9]{1,3} [-+*] [1-9][0-9]{1,3}\)\n"
AGENT = {
    "apis": [
        "play_man~48(text)",
        "recress_roof~19(rank)",
        "cook_plan~73(colour)",
        "buy_hen~28(rank)",
    ],
    "request": '- play_man with text "strazyrt".\n- recress_roof with rank 7.',
}
JSON = r"""start: object
object: "{" pair ("," pair)* "}"
pair: STRING ":" value
value: object | list | STRING | NUMBER | "true" | "false" | "null"
list: "[" value ("," value)* "]"
STRING: /"[a-z ]{1,8}"/
NUMBER: /[1-9][0-9]{0,3}/"""


@dataclass(frozen=True)
class Pair:
    """A program and a script, with the options that both take."""

    program: str
    options: dict[str, Any]
    flags: tuple[str, ...] = ()  # of the program alone
    tools: bool = False


_OPTIMIZATIONS = {
    "": (),
    ", cached": ("--cache",),
    ", cached, early": ("--cache", "--early"),
    ", cached, early, dropped": ("--cache", "--early", "--drop"),
}
PAIRS = {
    "text completion": Pair("text_completion", {"prompt": "Once upon a time", "max_tokens": 64}),
    "prefix caching": Pair(
        "prefix_caching",
        {"prefix": " Rena lives in Swoosuk." * 40, "prompt": " Rena lives in", "max_tokens": 16},
    ),
    "beam search": Pair("beam_search", {"prompt": "The capital of", "width": 4, "max_tokens": 12}),
    "EBNF decoding": Pair(
        "ebnf_decoding",
        {"prompt": "Make a person: name Rena, age 31. ", "ebnf": JSON, "max_tokens": 256},
    ),
    "attention sink": Pair(
        "attention_sink", {"prompt": "Once upon a time", "window": 4, "max_tokens": 256}
    ),
    "hierarchical attention": Pair(
        "hierarchical_attention",
        {
            "parts": [f" Part {n}." + " Rena lives in Swoosuk." * 20 for n in range(8)],
            "prompt": " Rena lives in",
            "max_tokens": 32,
        },
    ),
    "tree of thought": Pair(
        "tree_of_thought",
        {"question": "What is 880 - 826?", "branches": 4, "best": 2, "depth": 5},
    ),
    "recursion of thought": Pair("recursion_of_thought", {"numbers": NUMBERS}),
    "graph of thought": Pair("graph_of_thought", {"numbers": NUMBERS[:4]}),
    "skeleton of thought": Pair(
        "skeleton_of_thought",
        {"prompt": "Write about a fox, a hen and a bear.", "points": 4, "max_tokens": 16},
    ),
    "ReAct": Pair("react", {"question": QUESTION}, tools=True),
    "CodeAct": Pair("code_act", {"task": "What is 478 * 356?", "grammar": PRINT, "steps": 8}),
    "Swarm": Pair(
        "swarm",
        {"agents": ["ada", "bob"], "task": "Once upon a time", "rounds": 6, "max_tokens": 8},
    ),
    **{
        f"API agent{name}": Pair("api_agent", AGENT, flags, tools=True)
        for name, flags in _OPTIMIZATIONS.items()
    },
}

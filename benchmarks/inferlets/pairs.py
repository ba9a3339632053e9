"""Pairs to compare: programs and scripts of the same logic, with the options that both take."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
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
# Hundreds of milliseconds per tool, 36 tools, of which four are called. Among twice as many
# pie-tiny calls wrong ones, or writes nonsense to its limit.
VERBS = ("find", "read", "write", "open")
NOUNS = ("file", "room", "flight", "hotel", "taxi", "train", "ticket", "note")
TOOL_SECONDS = {"fetch_weather": 0.35, "book_table": 0.73, "send_mail": 0.48, "pay_bill": 0.19}
TOOLBOX = {
    "apis": [
        "fetch_weather~35(city)",
        "book_table~73(colour)",
        "send_mail~48(text)",
        "pay_bill~19(rank)",
        *(f"{verb}_{noun}~20(text)" for verb, noun in product(VERBS, NOUNS)),
    ],
    "request": """- fetch_weather with city "Swoosuk".
- book_table with colour "red".
- send_mail with text "strazyrt".
- pay_bill with rank 7.""",
}
BY_TURNS = TOOLBOX | {"mode": "one at a time"}
GROWN = 32  # times as wide as pie-tiny
STORY = {"prompt": "Once upon a time there was a small fox called Rena. She", "max_tokens": 64}
COINS = {
    "prompt": "<|begin|><|user|>\nWrite the word coin 9 times.<|end|>\n<|assistant|>\n",
    "max_tokens": 64,
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
    grown: bool = False  # on a model as dear as one of 96 M parameters


_OPTIMIZATIONS = {
    "": (),
    ", cached": ("--cache",),
    ", cached, early": ("--cache", "--early"),
    ", cached, early, dropped": ("--cache", "--early", "--drop"),
}
# A call ends its turn: none is early.
_OF_TURNS = {"": (), ", cached": ("--cache",), ", cached, dropped": ("--cache", "--drop")}
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
    **{
        f"toolbox{name}": Pair("api_agent", TOOLBOX, flags, tools=True, grown=True)
        for name, flags in _OPTIMIZATIONS.items()
    },
    **{
        f"toolbox by turns{name}": Pair("api_agent", BY_TURNS, flags, tools=True, grown=True)
        for name, flags in _OF_TURNS.items()
    },
    "speculation, drafter": Pair(
        "speculative_decoding", STORY, ("--drafter", "pie-tiny-draft"), grown=True
    ),
    "speculation, lookup": Pair("speculative_decoding", STORY, grown=True),
    "speculation, lookup, repetition": Pair("speculative_decoding", COINS, grown=True),
}

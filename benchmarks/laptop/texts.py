"""Odd strings, prompts, and a passage to score: the same in every run."""

from __future__ import annotations

from pathlib import Path
from random import Random

DOCS = Path(__file__).parents[2] / "docs"
PROMPTS = (
    "The capital of France is",
    "Once upon a time, in a small village by the sea,",
    'def fibonacci(n):\n    """Return the n-th Fibonacci number."""\n',
    "Shopping list:\n\n1. Apples\n2. Bread\n\n3.",
    "| name | age |\n|---|---|\n| Ann | 31 |\n| Bob |",
    "Die Hauptstadt von Deutschland ist",
    "Les trois couleurs du drapeau fran\u00e7ais sont",
    "\u65e5\u672c\u306e\u9996\u90fd\u306f",
    "\U0001f642\U0001f680 Emoji are fun because",
    "Q: What is 17 + 25?\nA:",
    "import numpy as np\n\ndef softmax(x):\n    ",
    '{"name": "Alice", "age": 30, "city":',
    "SELECT name, COUNT(*) FROM users\nWHERE age >  18\nGROUP BY",
    "To be, or not to be, that is",
    "<html>\n  <body>\n    <h1>",
    "Dear Sir or Madam,\n\nI am writing to",
    "The mitochondria is the powerhouse of",
    "Translate to Spanish: Good morning.\nSpanish:",
    "The year is  2024 and the   7 dwarfs\n\n12 of them",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043a\u0430\u043a",
    "   leading spaces and\ttabs\t\t",
    "for (int i = 0; i < 10; i++) {\n",
    "A haiku about autumn:\n\n",
    "\\frac{d}{dx} x^2 =",
    "Roses are red,\nViolets are blue,\n",
    "<|im_start|>user\nWhat is gravity?<|im_end|>\n<|im_start|>assistant\n",
)
# Tokens of the prompts that are passages of the documents.
LENGTHS = (300, 1000, 3000)
_PARTS = (
    *("a", "B", "fox", "The", "1", "22", "2024", "-", "_", "...", "don't", "'S", "==", "->", "://"),
    *(
        "\u00e9",
        "e\u0301",
        "\u00df",
        "\u00bd",
        "\uff12",
        "\ufb01",
        "\u4e2d",
        "\u65e5\u672c",
        "\ud55c",
    ),
    *("\u05e9\u05dc", "\u0645\u0631", "\u0928\u092e\u0938", "\U0001f600", "\x00", "\x07", "\u200d"),
    *("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<s>", "</s>", "<|eot_id|>", "<pad>"),
)
_SPACES = (" ", "  ", "    ", "\n", "\n\n", "\t", "\r\n", "\u3000", "\u00a0", "")
_RANGES = ((32, 127), (0, 0x300), (0x300, 0xD800), (0xE000, 0x20000))


def odd_strings(count: int) -> list[str]:
    """In turns: of odd parts, of any characters, of lines that are cut and put together."""
    random = Random(7)
    lines = passage().splitlines(keepends=True)

    def parts() -> str:
        return "".join(random.choice(_PARTS + _SPACES) for _ in range(random.randrange(16)))

    def characters() -> str:
        kinds = (random.choice(_RANGES) for _ in range(random.randrange(16)))
        return "".join(chr(random.randrange(*kind)) for kind in kinds)

    def cut() -> str:
        both = random.choice(lines) + random.choice(_SPACES) + random.choice(lines)
        return both[random.randrange(len(both)) :][:80]

    return [(parts, characters, cut)[number % 3]() for number in range(count)]


def passage() -> str:
    """The repository's documents, one behind the other."""
    return "\n".join(file.read_text(encoding="utf-8") for file in sorted(DOCS.glob("*.md")))

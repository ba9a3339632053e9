"""The table of the library's programs, and how long each is, for the site.

Lines are those of code: not blank, no comment, no docstring. The paper's are of Pie (SOSP 2025),
Table 2, in Rust.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

LIBRARY = Path(__file__).resolve().parents[1] / "inferlets"

PAPER = {
    "text_completion": 38,
    "tree_of_thought": 198,
    "recursion_of_thought": 106,
    "graph_of_thought": 87,
    "skeleton_of_thought": 82,
    "prefix_caching": 45,
    "modular_caching": 72,
    "ebnf_decoding": 225,
    "beam_search": 98,
    "watermarking": 43,
    "output_validation": 52,
    "speculative_decoding": 255,
    "jacobi_decoding": 88,
    "attention_sink": 60,
    "windowed_attention": 60,
    "hierarchical_attention": 42,
    "react": 60,
    "code_act": 62,
    "swarm": 95,
}
HEAD = """\
| program | Python, lines | Rust, lines | paper, lines |
|---|---:|---:|---:|
"""


def table() -> str:
    """The table: the paper's programs come first."""
    folders = sorted(readme.parent for readme in LIBRARY.glob("*/README.md"))
    folders.sort(key=lambda folder: (folder.name not in PAPER, folder.name))
    return HEAD + "".join(map(_row, folders))


def _row(folder: Path) -> str:
    python, rust = folder / "main.py", sorted((folder / "rust" / "src").glob("*.rs"))
    cells = [
        f"[{folder.name}]({folder.name}.md)",
        str(python_lines(python.read_text(encoding="utf-8"))) if python.exists() else "",
        str(sum(rust_lines(file.read_text(encoding="utf-8")) for file in rust)) if rust else "",
        str(PAPER.get(folder.name, "")),
    ]
    return f"| {' | '.join(cells)} |\n"


def python_lines(source: str) -> int:
    """Lines of code of a module in Python."""
    tree = ast.parse(source)
    words: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0]
            if ast.get_docstring(node, clean=False) is not None:
                words |= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    lines = enumerate(source.splitlines(), 1)
    return sum(n not in words and not re.match(r"\s*(#|$)", line) for n, line in lines)


def rust_lines(source: str) -> int:
    """Lines of code of a module in Rust."""
    return sum(not re.match(r"\s*(//|$)", line) for line in source.splitlines())

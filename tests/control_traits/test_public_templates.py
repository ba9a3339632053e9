"""Chat templates of public models: none is rendered otherwise than `transformers` does.

They come with the sources of llama.cpp (and of the package `llama-cpp-python`, which has them):
`CHAT_TEMPLATES` names their folder. `pytest -s` shows the counts.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from control_traits.test_chat_templates import TALK, TOOLS
from support.checkpoints import small_tokenizer
from support.instances import failure
from transformers import AutoTokenizer

from pie_control.models.tokenizer import TextCodec

FOLDER = os.environ.get("CHAT_TEMPLATES")
CALL = {"name": "f", "arguments": {"a": 1}}
TALKS: dict[str, list[dict[str, Any]]] = {
    "all": TALK,
    "one": [{"role": "user", "content": " Hi "}],
    "system": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
    "turns": [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "<think>so</think>Hello"},
        {"role": "user", "content": "Why?"},
    ],
    "tools": [
        {"role": "user", "content": "Hi"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "123456789", "type": "function", "function": CALL}],
        },
        {"role": "tool", "content": "21", "name": "f", "tool_call_id": "123456789"},
        {"role": "assistant", "content": "It is 21."},
        {"role": "user", "content": "Thanks"},
    ],
}
ARGUMENTS: list[dict[str, Any]] = [
    {},
    {"tools": TOOLS},
    {"enable_thinking": False},
    {"reasoning_effort": "high", "tools": TOOLS},
]


@pytest.mark.slow
@pytest.mark.skipif(FOLDER is None, reason="CHAT_TEMPLATES names no folder of templates")
def test_none_differs(tmp_path: Path) -> None:
    logging.getLogger("transformers").setLevel(logging.ERROR)
    small_tokenizer().save_pretrained(tmp_path)
    counts: Counter[str] = Counter()
    files = sorted(Path(FOLDER or "").rglob("*.jinja"))
    for file in files:
        (tmp_path / "chat_template.jinja").write_text(file.read_text())
        ours, theirs = TextCodec(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
        for talk, given, cue in itertools.product(TALKS, ARGUMENTS, (False, True)):
            try:
                wanted = theirs.apply_chat_template(
                    TALKS[talk], tokenize=False, add_generation_prompt=cue, **given
                )
            except Exception:
                wanted = None  # whatever is wrong with the template or the talk
            request = json.dumps({"messages": TALKS[talk], **given})
            if wanted is None:
                with failure("invalid-argument"):
                    ours.apply_chat_template(request, cue)
            else:
                assert ours.apply_chat_template(request, cue) == wanted, (file.name, talk, given)
            counts["both refuse" if wanted is None else "same"] += 1
    print(len(files), "templates:", dict(counts))

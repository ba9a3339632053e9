"""The required tests of the JSON-Schema-Test-Suite: nothing is accepted wrongly.

They come with the sources of the package `jsonschema`: `JSON_SCHEMA_SUITE` names their folder
`json/tests`. `pytest -s` shows the counts.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.checkpoints import small_tokenizer

from pie_control.api.grammar.compiling import compiled, schema_grammar
from pie_control.api.grammar.vocabulary import load_vocabulary
from pie_control.errors import ApiError
from pie_control.models.tokenizer import TextCodec

FOLDER = os.environ.get("JSON_SCHEMA_SUITE")
DRAFTS = {
    "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
    "draft7": "http://json-schema.org/draft-07/schema#",
}


def groups() -> Iterator[dict[str, Any]]:
    """The suite's groups of tests, whose schemas say which draft they are of."""
    for draft, name in DRAFTS.items():
        for file in sorted((Path(FOLDER or "") / draft).glob("*.json")):
            for group in json.loads(file.read_text()):
                if isinstance(group["schema"], dict):
                    group["schema"] = {"$schema": name, **group["schema"]}
                yield group


@pytest.mark.slow
@pytest.mark.skipif(FOLDER is None, reason="JSON_SCHEMA_SUITE names no folder of the suite")
def test_required_tests(tmp_path: Path) -> None:
    small_tokenizer().save_pretrained(tmp_path)
    codec = TextCodec(tmp_path)
    vocabulary = load_vocabulary(codec, codec.id_limit, (1,))
    counts: Counter[str] = Counter()
    for group in groups():
        try:
            start = compiled(vocabulary, schema_grammar(json.dumps(group["schema"])))
        except ApiError:
            counts["refused"] += len(group["tests"])
            continue
        for test in group["tests"]:
            tokens = codec.encode(json.dumps(test["data"], ensure_ascii=False))
            walk = start.deep_copy()
            fits = walk.try_consume_tokens(tokens) == len(tokens) and walk.is_accepting()
            right = fits == test["valid"]
            counts["right" if right else "accepted wrongly" if fits else "too narrow"] += 1
            assert not (fits and not right), (group["description"], test["description"])
    print(dict(counts), sum(counts.values()))
    assert counts["right"] >= 1500

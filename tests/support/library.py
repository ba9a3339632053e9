"""Runs the programs of the library."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from pie_py.client.sync import Client

ROOT = Path(__file__).parents[2]
LIBRARY = ROOT / "inferlets"
SMALL_CONTEXT = 128  # tokens that the model `small` takes


class Library:
    """Runs programs of the library."""

    def __init__(self, client: Client, endpoint: str, checkpoint: Path, small: Path) -> None:
        self.client = client
        self.endpoint = endpoint  # of the server
        self.checkpoint = checkpoint  # of the model `test`
        self.small = small  # of the model `small`, with the same tokens
        self._uploaded: dict[str, str] = {}

    def launch(self, name: str, args: Sequence[str] = (), **options: object) -> Any:
        """Launches a program with options; a list is several values of one."""
        if name not in self._uploaded:
            self._uploaded[name] = self.client.upload(LIBRARY / name / "main.py", name=name)
        return self.launch_uploaded(self._uploaded[name], args, **options)

    def launch_uploaded(self, program: str, args: Sequence[str] = (), **options: object) -> Any:
        """As `launch`, of a program by its hash."""
        given = [*args]
        for option, value in options.items():
            values = value if isinstance(value, list) else [value]
            given += [f"--{option.replace('_', '-')}", *map(str, values)]
        return self.client.launch(program, given)

    def run(self, name: str, **options: object) -> Any:
        """What a program returns."""
        return json.loads(self.launch(name, (), **options).result())

    def complete(self, prompt: str, tokens: int) -> str:
        """The greedy text of the embedded model."""
        instance = self.launch("text_completion", (), prompt=prompt, max_tokens=tokens)
        return "".join(str(piece) for piece in instance) + str(instance.result())

    def rows(self) -> int:
        """Rows of the embedded model's commands so far: three a token, embedded, run and chosen."""
        rows: int = self.client.stats()["pie-tiny"]["rows"]
        return rows

    def forwards(self, model: str = "pie-tiny") -> tuple[int, int]:
        """Forwards so far, and the batches that they ran in."""
        stats = self.client.stats()[model]
        return stats["commands"].get("forward", 0), stats["batches"].get("forward", 0)

    def encode(self, text: str) -> list[int]:
        """Tokens of the model `test`."""
        tokens: list[int] = AutoTokenizer.from_pretrained(self.checkpoint)(text)["input_ids"]
        return tokens

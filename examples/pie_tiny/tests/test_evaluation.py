"""The evaluation counts what a model writes as the samples have it."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner
from transformers import AutoModelForCausalLM

from examples.pie_tiny.corpus.mixture import GENERATORS
from examples.pie_tiny.evaluate import main
from examples.pie_tiny.model import build
from pie_inference.checkpoints.loader import checkpoint_folder


def figures(folder: Path, file: Path) -> dict[str, dict[str, float]]:
    arguments = [str(folder), "--samples", "3", "--device", "cpu", "--json", str(file)]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    found: dict[str, dict[str, float]] = json.loads(file.read_text())
    assert set(found) == set(GENERATORS)
    return found


def test_the_embedded_model_writes_what_an_untrained_one_does_not(tmp_path: Path) -> None:
    shipped = checkpoint_folder("pie-tiny")
    ours = figures(shipped, tmp_path / "figures.json")
    assert ours["arithmetic"] == ours["json"] == {"tokens": 100, "whole": 100}
    assert all(85 < kind["tokens"] <= 100 and 0 <= kind["whole"] <= 100 for kind in ours.values())
    assert ours["story"]["whole"] == 0  # what is drawn freely cannot be known
    vocabulary = AutoModelForCausalLM.from_pretrained(shipped).config.vocab_size
    build("pie-tiny-draft", vocabulary, seed=1).save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_bytes((shipped / "tokenizer.json").read_bytes())
    untrained = figures(tmp_path, tmp_path / "untrained.json")
    assert all(kind["tokens"] < 5 and kind["whole"] == 0 for kind in untrained.values())

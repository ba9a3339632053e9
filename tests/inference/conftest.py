"""Checkpoints that many tests of the worker read and none changes, each made once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.checkpoints import make_llama
from support.families import make_family
from support.model_rig import Rig


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Llama, called `llama`."""
    return make_llama(tmp_path_factory.mktemp("model") / "llama")


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The checkpoint of a family."""
    families = tmp_path_factory.mktemp("families")
    return lambda family: make_family(families / family, family)


@pytest.fixture(scope="module")
def rig(folder: Path) -> Rig:
    """The small Llama, served; the first embeds hold hidden states at random."""
    found = Rig(folder)
    hidden = torch.randn(8, 64, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        found.model.embeds.hidden[:8] = hidden
    return found

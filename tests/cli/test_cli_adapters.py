"""Adapters on the command line and in configuration files."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from click import UsageError
from pydantic import ValidationError

from pie_py.cli.kept_servers import server_key
from pie_py.cli.server_config import server_config
from pie_py.config.model import ModelConfig

NONE: dict[str, Any] = dict.fromkeys(("endpoint", "file", "threads", "max_instances"), None)


def test_adapters_of_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "poet").mkdir()
    monkeypatch.chdir(tmp_path)
    for models in ((), ("some/model",)):
        config = server_config(models=models, adapters=("rhymes=poet",), **NONE)
        assert config.models[0].adapters == {"rhymes": tmp_path / "poet"}
    file = tmp_path / "pie.toml"
    file.write_text("[[models]]\nsource = 'x'\nkv_pages = 7\nadapters = {a = '/a', b = '/b'}\n")
    config = server_config(models=(), **{**NONE, "file": file})
    assert config.models[0].adapters == {"a": Path("/a"), "b": Path("/b")}


def test_wrong_ones(tmp_path: Path) -> None:
    for text, told in (("x", "NAME=FOLDER"), ("=y", "NAME=FOLDER"), ("x=nowhere", "no folder")):
        with pytest.raises(UsageError, match=told):
            server_config(models=(), adapters=(text,), **NONE)
    with pytest.raises(UsageError, match="one --model"):
        server_config(models=("a", "b"), adapters=(f"x={tmp_path}",), **NONE)
    with pytest.raises(UsageError, match="a name has letters"):
        server_config(models=(), adapters=(f"a b={tmp_path}",), **NONE)
    with pytest.raises(ValidationError):
        ModelConfig(adapters={"../x": tmp_path})


@pytest.mark.parametrize(
    "given",
    ["models", "on_demand", "file", "PIE_PY_MODELS", "pie_py_models", "adapters", "program"],
)
def test_a_server_is_not_kept_for_other_files(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a model or an adapter one may come, or be trained again, while the server runs."""
    model, folder, file = tmp_path / "m.gguf", tmp_path / "poet", tmp_path / "pie.toml"
    folder.mkdir()
    for each in (model, folder / "adapter_model.safetensors"):
        each.write_text("weights")
    facts = f"source = '{model}'\nkv_pages = 9\nadapters = {{ poet = '{folder}' }}\n"
    file.write_text(f"[[models]]\n{facts}")
    if given.upper() == "PIE_PY_MODELS":
        monkeypatch.setenv(given, json.dumps([tomllib.loads(facts)]))
    every: dict[str, dict[str, Any]] = {
        "models": {"models": (str(model),)},
        "on_demand": {"on_demand": (str(model), str(folder))},
        "file": {"file": file},
        "adapters": {"adapters": (f"poet={folder}",)},
        "program": {},
    }
    options = every.get(given, {})
    adapters = {str(model): {"poet": folder}} if given == "program" else {}
    first = server_key(options, adapters)
    assert server_key(options, adapters) == first
    if given not in ("adapters", "program"):
        (tmp_path / "mmproj-m.gguf").write_text("a projector")
        assert first != (first := server_key(options, adapters))
    if given != "models":
        (folder / "adapter_model.safetensors").write_text("other weights")
        assert first != server_key(options, adapters)

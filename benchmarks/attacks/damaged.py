"""Checkpoints that a stranger may have made: a sound one, changed in one place or a few.

Each has a number, and the same number gives the same checkpoint. The places are chosen so that most
files get past the first look: fields of their own formats, rather than any bytes.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors import safe_open

from pie_inference.checkpoints.loader import EMBEDDED
from pie_inference.models.registry import ARCHITECTURES

SOUND = EMBEDDED / "pie-tiny-draft"
OUTSIDE = "outside"  # a folder beside the checkpoint's, which nothing of it may name
_WEIGHTS = "model.safetensors"
_TOKENIZER = "tokenizer.json"
_BIG = [0, 1, 2, 3, 7, -1, 2**16, 10**6, 2**31, 2**32 - 1, 10**9, 2**45, 2**60, 2**63, 2**64 - 1]
_ODD: list[Any] = [
    *_BIG, None, True, False, 1e308, 1e-300, -0.5, float("nan"), float("inf"), "", "x", "\0",
    "\x1b[2J\x1b]0;owned\a", "ü" * 300, "x" * 100_000, "../../outside", "/etc/passwd",
    [], {}, [[]], ["x", None, {"a": 1}], [2**60] * 3, [1] * 100_000, list(range(100_000)), {"": {}},
    "auto", "float16", "yarn", "longrope", "mrope", "gelu",
]  # fmt: skip
_PATTERNS = [
    "(a+)+$", "(a|aa)+$", "(?=(a+))*\\1$", "((a*)*)*b", "(.*)*x", "", "(", "a{1000000}", "(?i:ſ)*",
    "(?<=a+)b", "\\p{L}" * 2000, "(" * 500 + ")" * 500, "[" + "a-z" * 9000 + "]+",
    "(x?){30}x{30}", "((((((a{10}){10}){10}){10}){10}){10})",
]  # fmt: skip
_TEMPLATES = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}", "{{ 'a'*10**9 }}", "{{ 9**9**9 }}",
    "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
    "{{ range(10**9)|list|length }}", "{{ '%1000000000d' % 1 }}", "{{ ['a']*100000000 }}",
    "{{ '{0:>1000000000}'.format(1) }}", "{{ strftime_now('%1000000000d') }}", "{" * 100_000,
    "{%- macro f(n) -%}{{ f(n+1) }}{%- endmacro -%}{{ f(0) }}", "{% include '/etc/passwd' %}",
    "{{ ('a'*1000000).replace('a','a'*1000)|length }}",
    "{{ " + "(" * 3000 + "1" + ")" * 3000 + "}}",
    "{{ messages|tojson(indent=10**9) }}", "{{ 1" + "+1" * 30_000 + " }}", "\x1b]0;owned\a",
    "{% if a %}" * 300 + "{% endif %}" * 300, "{{ [[" * 2000, "{{ '\\ud800' }}", "{% set x %}",
    "{{ " + "a." * 20_000 + "a }}", "{{ x" + "|upper" * 20_000 + " }}", "{{ ~" * 10_000,
]  # fmt: skip


def damaged(number: int, place: Path, seed: int = 1) -> Path:
    """Makes a checkpoint and returns its folder or file; `place` is an empty folder for it."""
    chance = random.Random(f"{seed} {number}")
    (place / OUTSIDE).mkdir()
    kinds: list[Callable[[Path, random.Random], Path | None]] = [
        _gguf, _config, _tokenizer, _safetensors, _template, _links, _settings, _gguf, _config,
        _tokenizer,
    ]  # fmt: skip
    folder = place / "model"
    shutil.copytree(SOUND, folder)
    return kinds[number % len(kinds)](folder, chance) or folder


def size_of(place: Path) -> int:
    """Bytes of all its files; links count as nothing."""
    return sum(file.lstat().st_size for file in place.rglob("*") if file.is_file())


def _changed(value: Any, chance: random.Random) -> Any:
    """A value of JSON with something else at one place, which is near its top or anywhere."""
    if not isinstance(value, dict | list) or not value or chance.random() < 0.05:
        return chance.choice(_ODD)
    keys = list(value) if isinstance(value, dict) else range(len(value))
    at = chance.choice(list(keys))
    match chance.randrange(10):
        case 0:
            del value[at]
        case 1 if isinstance(value, dict):
            value[str(chance.choice(_ODD))[:200]] = value.pop(at)
        case 2 if isinstance(value, list):
            value += [value[at]] * chance.choice((1, 1000, 50_000))
        case 3 | 4:
            value[at] = chance.choice(_ODD)
        case _:
            value[at] = _changed(value[at], chance)
    return value


def _rewrite(file: Path, chance: random.Random) -> None:
    """A JSON file with a few values changed, or nested without end, or of broken bytes."""
    match chance.randrange(16):
        case 0:
            file.write_text(chance.choice(('{"a":', "[")) * chance.choice((500, 200_000)))
        case 1:
            file.write_bytes(_broken(file.read_bytes(), chance))
        case 2:
            file.write_text('{"hidden_size":' + "9" * chance.choice((400, 20_000)) + "}")
        case _:
            value = json.loads(file.read_text())
            for _ in range(chance.choice((1, 1, 1, 2, 4))):
                value = _changed(value, chance)
            file.write_text(json.dumps(value))


def _broken(data: bytes, chance: random.Random) -> bytes:
    """Bytes that are flipped, cut, repeated or more, most of them near the beginning."""
    most = len(data) if chance.random() < 0.3 else min(len(data), 4096)
    at = chance.randrange(max(1, most))
    match chance.randrange(5):
        case 0:
            return data[:at]
        case 1:
            return data[:at] + chance.randbytes(8) + data[at:]
        case 2:
            return data[:at] + data[at + chance.randrange(1, 64) :]
        case 3:
            return data[:at] + struct.pack("<Q", chance.choice(_BIG) % 2**64) + data[at + 8 :]
    return data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :]


def _config(folder: Path, chance: random.Random) -> None:
    file = folder / "config.json"
    config = json.loads(file.read_text())
    match chance.randrange(6):
        case 0:
            config["architectures"] = [chance.choice(sorted(ARCHITECTURES))]
            config["num_experts"] = config["num_local_experts"] = chance.choice(_BIG)
        case 1:
            kind = chance.choice(
                ("default", "linear", "yarn", "longrope", "llama3", "dynamic", "x")
            )
            config["rope_parameters"] = {
                "rope_type": kind,
                "rope_theta": chance.choice(_ODD),
                "factor": chance.choice(_ODD),
                "short_factor": chance.choice(_ODD),
                "long_factor": [chance.choice(_ODD)] * 32,
            }
        case 2:
            method = chance.choice(("awq", "gptq", "fp8", "mxfp4", "compressed-tensors", "x"))
            bits, size = chance.choice(_BIG), chance.choice(_BIG)
            config["quantization_config"] = {
                "quant_method": method,
                "bits": bits,
                "group_size": size,
            }
        case 3:
            names = [name for name, value in config.items() if type(value) is int]
            for name in chance.sample(names, chance.choice((1, 2))):
                config[name] = chance.choice(_BIG)
        case _:
            _rewrite(file, chance)
            return
    file.write_text(json.dumps(config))


def _settings(folder: Path, chance: random.Random) -> None:
    if chance.random() < 0.3:
        ends = chance.choice(([*range(100_000)], ["x", None], [2**63], {"a": 1}, "</s>", -5, 1.5))
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    elif chance.random() < 0.4:
        more = {str(chance.choice(_BIG)): chance.choice(_ODD), "7": {"content": "x", "special": 3}}
        (folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": more}))
    else:
        _rewrite(
            folder / chance.choice(("generation_config.json", "tokenizer_config.json")), chance
        )


def _tokenizer(folder: Path, chance: random.Random) -> None:
    file = folder / _TOKENIZER
    value = json.loads(file.read_text())
    grows = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 1000}
    pattern = {"Regex": chance.choice(_PATTERNS)}
    split = {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}
    long = chance.choice((1000, 200_000))
    match chance.randrange(14):
        case 0 | 1:
            value["pre_tokenizer"] = split
        case 2:
            several = chance.choice((1, 3, 100))
            value["normalizer"] = {"type": "Sequence", "normalizers": [grows] * several}
        case 3:
            value["decoder"] = {"type": "Sequence", "decoders": [grows] * chance.choice((1, 3))}
        case 4:
            value["normalizer"] = {**grows, "pattern": pattern}
        case 5:
            token = {"single_word": False, "lstrip": True, "rstrip": True, "normalized": False}
            # Many enough that no machine reads them in the time that there is: 200 000 took 3.2 s.
            value["added_tokens"] += [
                {**token, "id": 2403 + i, "content": f"t{i}", "special": True}
                for i in range(long * 3 // 2)
            ]
        case 6:
            value["model"]["vocab"]["zzz"] = chance.choice((4 * 10**8, 2**32 - 1, 2**40, -1, 3000))
        case 7:
            value["normalizer"] = {"type": "Prepend", "prepend": "x" * chance.choice((50, 10**7))}
        case 8:
            kind = chance.choice(("Unigram", "WordPiece", "WordLevel", "BPE", "x"))
            words = value["model"]["vocab"]
            table = [[text, -1.0] for text in words] if kind == "Unigram" else words
            value["model"] = {
                "type": kind, "vocab": table, "unk_id": chance.choice((0, 10**9)), "unk_token": "?",
                "continuing_subword_prefix": "#", "max_input_chars_per_word": 10**9, "merges": [],
            }  # fmt: skip
        case 9:
            nested: dict[str, Any] = {"type": "Sequence", "normalizers": []}
            for _ in range(chance.choice((60, 5000))):
                nested = {"type": "Sequence", "normalizers": [nested]}
            file.write_text(_json_of(nested, value))
            return
        case 10:
            charsmap = chance.choice(("", "AAAA", "//////////8=", "A" * 10_000))
            value["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": charsmap}
        case _:
            _rewrite(file, chance)
            return
    file.write_text(json.dumps(value))


def _json_of(nested: dict[str, Any], value: dict[str, Any]) -> str:
    """JSON of what is nested deeper than Python's own writer goes."""
    depth, inner = 0, nested
    while inner["normalizers"]:
        depth, inner = depth + 1, inner["normalizers"][0]
    text = '{"type": "Sequence", "normalizers": [' * depth + "]}" * depth
    return json.dumps({**value, "normalizer": None}).replace(
        '"normalizer": null', f'"normalizer": {text}'
    )


def _template(folder: Path, chance: random.Random) -> None:
    file = folder / "chat_template.jinja"
    text = chance.choice((*_TEMPLATES, file.read_text()))
    if chance.random() < 0.3:
        at = chance.randrange(max(1, len(text)))
        text = text[:at] + chance.choice(("{{", "%}", "{%", "}}", "|", "'", "\0")) + text[at:]
    file.write_text(text)


def _safetensors(folder: Path, chance: random.Random) -> None:
    file = folder / _WEIGHTS
    data = file.read_bytes()
    size = int.from_bytes(data[:8], "little")
    match chance.randrange(6):
        case 0:
            file.write_bytes(struct.pack("<Q", chance.choice(_BIG) % 2**64) + data[8:])
        case 1:
            file.write_bytes(_broken(data, chance))
        case 2:
            head = chance.choice((b'{"a":' * 100_000, b"[" * 300, b"{}", b"null", b" " * 10**6))
            file.write_bytes(struct.pack("<Q", len(head)) + head + data[8 + size :])
        case _:
            head = json.loads(data[8 : 8 + size])
            for _ in range(chance.choice((1, 1, 3))):
                head = _changed(head, chance)
            packed = json.dumps(head).encode()
            file.write_bytes(struct.pack("<Q", len(packed)) + packed + data[8 + size :])


def _links(folder: Path, chance: random.Random) -> None:
    """Names and links that leave the folder, or lead to what is no file."""
    outside = folder.parent / OUTSIDE
    name = chance.choice(sorted(file.name for file in folder.iterdir() if file.suffix != ".md"))
    match chance.randrange(8):
        case 0 | 1:
            shutil.move(folder / _WEIGHTS, outside / _WEIGHTS)
            names = _names(outside / _WEIGHTS)
            where = chance.choice((f"../{OUTSIDE}/{_WEIGHTS}", str(outside / _WEIGHTS)))
            table = {"weight_map": dict.fromkeys(names, where)}
            (folder / f"{_WEIGHTS}.index.json").write_text(json.dumps(table))
        case 2:
            table = {"weight_map": {"x": chance.choice((".", "..", "", "\0", "a/" * 3000, "nope"))}}
            (folder / f"{_WEIGHTS}.index.json").write_text(json.dumps(table))
        case 3:
            _rewrite_index(folder, chance)
        case 4 | 5:
            shutil.move(folder / name, outside / name)
            (folder / name).symlink_to(outside / name)
        case _:
            (folder / name).unlink()
            if chance.random() < 0.4:
                os.mkfifo(folder / name)
            else:
                wrong = ("/dev/zero", "/dev/stdin", "/etc/passwd", "/proc/kmsg", name, "..", "/")
                (folder / name).symlink_to(chance.choice(wrong))


def _rewrite_index(folder: Path, chance: random.Random) -> None:
    index = folder / f"{_WEIGHTS}.index.json"
    index.write_text(json.dumps({"weight_map": dict.fromkeys(_names(folder / _WEIGHTS), _WEIGHTS)}))
    _rewrite(index, chance)


def _names(file: Path) -> list[str]:
    with safe_open(file, framework="pt") as opened:
        return list(opened.keys())


class _Writer:
    """Bytes, and where a number stands in them that says how much follows, or of which kind."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.numbers: list[tuple[int, int]] = []  # begin, and bytes

    def number(self, value: int, size: int = 8) -> None:
        self.numbers.append((len(self.data), size))
        self.data += value.to_bytes(size, "little")

    def text(self, text: str) -> None:
        data = text.encode()
        self.number(len(data))
        self.data += data

    def value(self, value: Any) -> None:
        match value:
            case bool():
                self.number(7, 4)
                self.data += bytes([value])
            case int():
                self.number(4, 4)
                self.number(value, 4)
            case float():
                self.number(6, 4)
                self.data += struct.pack("<f", value)
            case str():
                self.number(8, 4)
                self.text(value)
            case [str(), *_]:
                self.number(9, 4)
                self.number(8, 4)
                self.number(len(value))
                for text in value[:3]:
                    self.text(text)
                for text in value[3:]:
                    self.data += struct.pack("<Q", len(text.encode())) + text.encode()
            case _:
                self.number(9, 4)
                self.number(5, 4)
                self.number(len(value))
                self.data += struct.pack(f"<{len(value)}i", *value)


def _gguf(folder: Path, chance: random.Random) -> Path:
    """The same model as a GGUF, in float32, with one number of its head changed, or a few bytes."""
    facts, tensors = _gguf_parts(folder)
    writer = _Writer()
    writer.data += b"GGUF"
    writer.number(3, 4)
    writer.number(len(tensors))
    if chance.random() < 0.35:
        key = chance.choice(list(facts))
        odd = [value for value in _ODD if isinstance(value, bool | str) or value in _BIG[:11]]
        facts[key] = chance.choice([value for value in odd if value is not None and value != -1])
    writer.number(len(facts))
    for key, value in facts.items():
        writer.text(key)
        writer.value(value)
    offset = 0
    for name, tensor in tensors.items():
        writer.text(name)
        writer.number(tensor.dim(), 4)
        for size in reversed(tensor.shape):
            writer.number(size)
        writer.number(0, 4)
        writer.number(offset)
        offset += -(-4 * tensor.numel() // 32) * 32
    data = writer.data
    data += bytes(-len(data) % 32)
    head = len(data)
    for tensor in tensors.values():
        raw = tensor.float().numpy().tobytes()
        data += raw + bytes(-len(raw) % 32)
    found = bytes(data)
    match chance.randrange(6):
        case 0 | 1 | 2:
            at, size = chance.choice(writer.numbers)
            wrong = (chance.choice(_BIG) % 2 ** (8 * size)).to_bytes(size, "little")
            found = found[:at] + wrong + found[at + size :]
        case 3:
            found = _broken(found[:head], chance) + found[head:]
        case 4 if chance.random() < 0.3:
            deep = struct.pack("<IQ", 9, 1) * 200_000
            begin = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"x"
            found = begin + struct.pack("<I", 9) + deep
    file = folder.parent / "model.gguf"
    file.write_bytes(found)
    shutil.rmtree(folder)
    return file


def _gguf_parts(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    config = json.loads((folder / "config.json").read_text())
    tokenizer = json.loads((folder / _TOKENIZER).read_text())
    vocab = tokenizer["model"]["vocab"] | {t["content"]: t["id"] for t in tokenizer["added_tokens"]}
    tokens = sorted(vocab, key=lambda text: vocab[text])
    special = {token["content"] for token in tokenizer["added_tokens"]}
    merges = [
        merge if isinstance(merge, str) else " ".join(merge)
        for merge in tokenizer["model"]["merges"]
    ]
    facts: dict[str, Any] = {
        "general.architecture": "llama",
        "general.alignment": 32,
        "llama.block_count": config["num_hidden_layers"],
        "llama.context_length": config["max_position_embeddings"],
        "llama.embedding_length": config["hidden_size"],
        "llama.feed_forward_length": config["intermediate_size"],
        "llama.attention.head_count": config["num_attention_heads"],
        "llama.attention.head_count_kv": config["num_key_value_heads"],
        "llama.attention.key_length": config["head_dim"],
        "llama.attention.value_length": config["head_dim"],
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 10_000.0,
        "llama.vocab_size": len(tokens),
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "llama-bpe",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if text in special else 1 for text in tokens],
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.eos_token_id": config["eos_token_id"],
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": (folder / "chat_template.jinja").read_text(),
    }
    parts = {
        "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
        "post_attention_layernorm": "ffn_norm",
    }  # fmt: skip
    outside = {"embed_tokens": "token_embd", "norm": "output_norm"}
    tensors = {}
    with safe_open(folder / _WEIGHTS, framework="pt") as opened:
        for name in opened.keys():  # noqa: SIM118 - it is no mapping
            module = name.removeprefix("model.").removesuffix(".weight")
            if module.startswith("layers."):
                _, number, part = module.split(".", 2)
                stored = f"blk.{number}.{parts[part]}.weight"
            else:
                stored = f"{outside[module]}.weight"
            tensors[stored] = opened.get_tensor(name)
    return facts, tensors

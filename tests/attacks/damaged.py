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

import gguf
from attacks.mutations import broken, changed
from safetensors import safe_open
from support.gguf_files import write_gguf

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


def _near(chance: random.Random) -> int | None:
    """Where most damage is: near the beginning."""
    return None if chance.random() < 0.3 else 4096


def _rewrite(file: Path, chance: random.Random) -> None:
    """A JSON file with a few values changed, or nested without end, or of broken bytes."""
    match chance.randrange(16):
        case 0:
            file.write_text(chance.choice(('{"a":', "[")) * chance.choice((500, 200_000)))
        case 1:
            file.write_bytes(broken(file.read_bytes(), chance, _near(chance)))
        case 2:
            file.write_text('{"hidden_size":' + "9" * chance.choice((400, 20_000)) + "}")
        case _:
            value = json.loads(file.read_text())
            for _ in range(chance.choice((1, 1, 1, 2, 4))):
                value = changed(value, chance, _ODD)
            file.write_text(json.dumps(value))


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
                "rope_type": kind, "rope_theta": chance.choice(_ODD), "factor": chance.choice(_ODD),
                "short_factor": chance.choice(_ODD), "long_factor": [chance.choice(_ODD)] * 32,
            }  # fmt: skip
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
                "type": kind,
                "vocab": table,
                "unk_id": chance.choice((0, 10**9)),
                "unk_token": "?",
                "continuing_subword_prefix": "#",
                "max_input_chars_per_word": 10**9,
                "merges": [],
            }
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
            file.write_bytes(broken(data, chance, _near(chance)))
        case 2:
            head = chance.choice((b'{"a":' * 100_000, b"[" * 300, b"{}", b"null", b" " * 10**6))
            file.write_bytes(struct.pack("<Q", len(head)) + head + data[8 + size :])
        case _:
            head = json.loads(data[8 : 8 + size])
            for _ in range(chance.choice((1, 1, 3))):
                head = changed(head, chance, _ODD)
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


def _gguf(folder: Path, chance: random.Random) -> Path:
    """The same model as a GGUF, with one number of its head changed, or a few bytes."""
    more = {}
    if chance.random() < 0.35:
        field = chance.choice(("block_count", "head_count", "vocab_size", "feed_forward_length"))
        more[field] = chance.choice(_BIG[:9]) % 2**32
    file = write_gguf(folder, "llama", **more)
    shutil.rmtree(folder)
    data, [head, *numbers] = file.read_bytes(), _places_of_numbers(file)
    match chance.randrange(6):
        case 0 | 1 | 2:
            at, size = chance.choice(numbers)
            wrong = (chance.choice(_BIG) % 2 ** (8 * size)).to_bytes(size, "little")
            data = data[:at] + wrong + data[at + size :]
        case 3:
            data = broken(data[: head[0]], chance) + data[head[0] :]
        case 4 if chance.random() < 0.3:
            deep = struct.pack("<IQ", 9, 1) * 200_000
            begin = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"x"
            data = begin + struct.pack("<I", 9) + deep
    file.write_bytes(data)
    return file


def _places_of_numbers(file: Path) -> list[tuple[int, int]]:
    """Where the tensors begin; then each number of the head: its place, and how many bytes it has.

    Of a long list of texts, the first ones' lengths.
    """
    reader = gguf.GGUFReader(file)
    found = [(reader.data_offset, 0), (4, 4), (8, 8), (16, 8)]
    for field in [*reader.fields.values(), *(tensor.field for tensor in reader.tensors)]:
        at = field.offset
        for part in field.parts[:12]:
            if at > 24 and part.dtype.kind in "iu" and part.dtype.itemsize > 1:
                found += [(at + i * part.itemsize, part.itemsize) for i in range(min(3, len(part)))]
            at += part.nbytes
    return found

"""The tokenizer that a checkpoint's files describe."""

from __future__ import annotations

import json
import reprlib
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import structlog
from tokenizers import AddedToken, Tokenizer, pre_tokenizers

from pie_py.config.printable import printable, quoted
from pie_py.config.processes import python_command
from pie_py.models.checkpoint_files import BadFile, checkpoint_file, read_object, read_text

log = structlog.get_logger("pie.tokenizer")

SPECIAL_NAMES = tuple(
    f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
)
TOKENIZER = "tokenizer.json"
_SPM_SPACE = "\u2581"
_CONVERSION_SECONDS = 300
# What the library converts where there is no tokenizer.json. It prints the file that lacks.
_CONVERT = """
import resource, sys
resource.setrlimit(resource.RLIMIT_DATA, (4 << 30, 4 << 30))
from transformers import AutoTokenizer
sys.stdout.write(AutoTokenizer.from_pretrained(sys.argv[1]).backend_tokenizer.to_str())
"""
_SOURCES = ("tokenizer.model", "spiece.model", "tekken.json", "tiktoken.model", "vocab.json")


class UnusableTokenizer(ValueError):
    """The files of a checkpoint make no tokenizer; the text names the file."""


@contextmanager
def reading(what: object) -> Iterator[None]:
    """Within it, what the tokenizers' library raises is an `UnusableTokenizer` that names a file.

    It has no error of its own; a panic in it is not even an `Exception`.
    """
    try:
        yield
    except (UnusableTokenizer, KeyboardInterrupt, SystemExit):
        raise
    except BadFile as error:
        raise UnusableTokenizer(str(error)) from None
    except BaseException as error:  # noqa: BLE001  Rust's panics are no Exception
        said = printable(error, 300)
        raise UnusableTokenizer(f"{what} cannot be read: {type(error).__name__}: {said}") from None


def load_tokenizer(folder: Path, settings: dict[str, Any]) -> Any:
    """The tokenizer of a folder: its tokenizer.json, with what tokenizer_config.json (`settings`)
    adds.

    Raises:
        UnusableTokenizer: if a file lacks or cannot be read, or the two disagree.
    """
    text = read_text(folder, TOKENIZER)
    tokenizer: Any = Tokenizer.from_str(_converted(folder) if text is None else text)
    if text is not None:
        _correct_spaces(tokenizer, settings)
    _add_tokens(tokenizer, folder, settings)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def special_texts(folder: Path, settings: dict[str, Any]) -> dict[str, str]:
    """The texts of `bos_token` and the like, as far as they are named.

    Older checkpoints name them in special_tokens_map.json.
    """
    named = dict(settings)
    if "added_tokens_decoder" not in settings:
        named |= read_object(folder, "special_tokens_map.json") or {}
    found = {}
    for name in SPECIAL_NAMES:
        token = named.get(name)
        text = token.get("content") if isinstance(token, dict) else token
        if isinstance(text, str):
            found[name] = text
    return found


def _add_tokens(tokenizer: Any, folder: Path, settings: dict[str, Any]) -> None:
    """Adds the tokens that only tokenizer_config.json or added_tokens.json name."""
    where = "tokenizer_config.json: added_tokens_decoder"
    wanted: dict[int, Any] = {}
    listed = settings.get("added_tokens_decoder")
    if isinstance(listed, dict):
        wanted = {int(i): token for i, token in listed.items() if str(i).isdigit()}
    elif listed is None:
        where = "added_tokens.json"
        special = set(special_texts(folder, settings).values())
        for text, i in (read_object(folder, where) or {}).items():
            named = text in special
            wanted[int(i)] = {"content": text, "special": named, "normalized": not named}
    known = tokenizer.get_added_tokens_decoder()
    for i, token in sorted(wanted.items()):
        facts: dict[str, Any] = dict(token) if isinstance(token, dict) else {"content": None}
        facts.pop("__type", None)
        if not isinstance(facts.get("content"), str):
            raise UnusableTokenizer(f"{folder / where}: token {i} is {reprlib.repr(token)}")
        if i in known and known[i].content == facts["content"]:
            continue
        added = AddedToken(**facts)
        if facts.get("special"):
            tokenizer.add_special_tokens([added])
        else:
            tokenizer.add_tokens([added])
        if (found := tokenizer.token_to_id(facts["content"])) != i:
            raise UnusableTokenizer(
                f"{folder}: {where} gives {quoted(facts['content'])} the id {i}, but"
                f" tokenizer.json's vocabulary gives it {found}"
            )


def _correct_spaces(tokenizer: Any, settings: dict[str, Any]) -> None:
    """Has no space before what follows a special token, where `legacy` is not set.

    `LlamaTokenizer` files were all written with the old rule; the setting corrects them.
    """
    name = str(settings.get("tokenizer_class", "")).removesuffix("Fast")
    if name != "LlamaTokenizer" or settings.get("legacy"):
        return
    described = json.loads(tokenizer.to_str())
    normalizers = (described.get("normalizer") or {}).get("normalizers", [])
    if {"type": "Prepend", "prepend": _SPM_SPACE} in normalizers:
        tokenizer.normalizer = None
        scheme = "never" if settings.get("add_prefix_space") is False else "first"
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(_SPM_SPACE, scheme, split=False)


def _converted(folder: Path) -> str:
    """The tokenizer.json that `transformers` makes of other files, in a process of its own."""
    sources = [name for name in _SOURCES if checkpoint_file(folder, name)]
    if not sources:
        raise UnusableTokenizer(f"{folder} has no tokenizer.json (nor {', '.join(_SOURCES)})")
    log.info("converting a tokenizer", file=sources[0])
    try:
        done = subprocess.run(
            python_command("-I", "-c", _CONVERT, str(folder)),
            capture_output=True,
            text=True,
            timeout=_CONVERSION_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise UnusableTokenizer(
            f"{folder / sources[0]} is not converted after {_CONVERSION_SECONDS} s"
        ) from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise UnusableTokenizer(
            f"{folder} has no tokenizer.json, and {sources[0]} cannot be converted: {lines[-1]}"
            " (`pip install 'pie-py[convert]'` brings what converts it)"
        )
    return done.stdout

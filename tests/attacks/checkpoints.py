"""Damaged checkpoints are served, or refused by a sentence that names the file.

Each is read in a process of its own, as the worker and the control process of a server read it at
their start, and a text is tokenized and rendered with it. The processes are forked from one that
has the libraries, so that each costs only what the checkpoint does.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from attacks.damaged import SOUND, damaged, size_of

from pie_py.config.kept_files import own_folder

MOST_SECONDS = 5.0  # of the CPU
PATIENCE = 120.0  # seconds, on a machine that is busy with others
MOST_MEMORY = 1.5  # times the file, above what the sound one takes
NOISE = 12 << 20  # bytes: libraries that only some need, and what allocators keep
_LIMIT = 3 << 30  # bytes beyond which a process of this is stopped
_CHAT = '[{"role": "user", "content": "hello"}]'
_peak = 0  # bytes, of the process that reads a checkpoint, until it is served
_TEXTS = (
    "Once upon a time there was 12 a\n\n  b.",
    "a" * 200 + "b",
    " " * 300,
    "x\ufdd0é\U0001f600",
)


@dataclass(frozen=True)
class Outcome:
    """What came of one checkpoint."""

    kind: str  # "served", "refused", or what is wrong
    text: str  # its error
    seconds: float  # of the CPU
    bytes: int  # at most, more than this process has


def undergo(make: Callable[[Path], Path], seconds: float = PATIENCE) -> tuple[Outcome, int]:
    """What comes of a checkpoint that is made in an empty folder, and the bytes of its files."""
    with tempfile.TemporaryDirectory(prefix="pie-") as name:
        source = make(Path(name))
        size = size_of(Path(name))
        return _forked(source, seconds), size


def judged(outcome: Outcome, size: int, base: int) -> str:
    """What is wrong with an outcome; empty if nothing is."""
    if outcome.kind not in ("served", "refused"):
        return f"{outcome.kind}: {outcome.text}"
    if outcome.seconds > MOST_SECONDS:
        return f"{outcome.seconds:.1f} s of CPU time"
    if outcome.bytes > base + NOISE + MOST_MEMORY * size:
        return f"{outcome.bytes / 1e6:.0f} MB of memory for {size / 1e6:.1f} MB of files"
    return ""


def _forked(source: Path, seconds: float) -> Outcome:
    reads, writes = os.pipe()
    started = time.monotonic()
    gc.freeze()
    before = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reads)
            status = _child(source, writes)
        finally:
            os._exit(status)
    os.close(writes)
    data, late = b"", False
    while not late:
        left = started + seconds - time.monotonic()
        if not select.select([reads], [], [], max(0.0, left))[0]:
            late = True
        elif part := os.read(reads, 65536):
            data += part
        else:
            break
    os.close(reads)
    os.kill(child, signal.SIGKILL)
    _, status, usage = os.wait4(child, 0)
    took = usage.ru_utime + usage.ru_stime
    peak = (usage.ru_maxrss << 10) - before
    if late:
        return Outcome("takes too long", "", took, peak)
    try:
        kind, text, at_start = json.loads(data)
    except ValueError:
        return Outcome("killed its process", f"status {status}", took, peak)
    return Outcome(kind, text, took, at_start - before if at_start else peak)


def _child(source: Path, answers: int) -> int:
    resource.setrlimit(resource.RLIMIT_DATA, (_LIMIT, _LIMIT))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # What is made of a GGUF is not kept; compiled kernels are those of the machine.
    cache = source.parent / "cache" / "pie_py"
    cache.mkdir(parents=True)
    (cache / "native").symlink_to(own_folder("native"))
    os.environ["XDG_CACHE_HOME"] = str(cache.parent)
    errors = os.open(os.devnull, os.O_WRONLY)
    os.dup2(errors, 1)
    os.dup2(errors, 2)
    try:
        found = _read(source)
    except BaseException as error:  # a panic of a library's is no Exception
        where = traceback.extract_tb(error.__traceback__)[-1]
        said = f"{type(error).__name__}: {error} ({where.filename}:{where.lineno})"
        found = ("raised", said[:300])
    os.write(answers, json.dumps((*found, _peak)).encode())
    return 0


def _read(source: Path) -> tuple[str, str]:
    """Reads a checkpoint as both processes do."""
    global _peak
    import trio

    from pie_control.confined.pool import ConfinedPool
    from pie_control.errors import ApiError
    from pie_control.fairness import Owner
    from pie_control.models.chat_template import INLINE_SECONDS
    from pie_control.models.tokenizer import decode, encode, render
    from pie_control.models.tokenizer_check import read_codec
    from pie_control.models.tokenizer_files import UnusableTokenizer
    from pie_inference.errors import LoadError
    from pie_inference.loading.assembly import load_models
    from pie_py.config.model import ModelConfig
    from pie_py.config.services import ConfinedConfig

    config = ModelConfig(
        source=str(source), name="one", kv_pages=16, embeds=8, host_pages=0, max_batch_tokens=8,
        max_batch_commands=4, device="cpu",
    )  # fmt: skip
    try:
        [served] = load_models([config])
        codec = read_codec(Path(served.description.folder), ConfinedConfig())
        # Later on a confined process may take what it may.
        whose = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        _peak = max(resource.getrusage(who).ru_maxrss for who in whose) << 10
    except (LoadError, UnusableTokenizer) as error:
        text = str(error)
        named = (
            any(str(each) in text for each in (source, source.name, f"{source.stem}-"))
            or "config.json" in text
        )
        plain = text.isprintable() and len(text) < 2000
        return ("refused" if named and plain else "refused without its name, or at length"), text

    at, user = str(codec.folder), Owner("u", "i")

    async def use() -> None:
        pool = ConfinedPool(ConfinedConfig())
        try:
            for text in _TEXTS:
                with suppress(ApiError):
                    if codec.trusted:
                        codec.decode(codec.encode(text))
                    else:
                        packed = await pool.call(
                            Owner("u", "i"), "a text", encode, at, text, seconds=0.3
                        )
                        await pool.call(Owner("u", "i"), "a text", decode, at, packed, seconds=0.3)
            with suppress(ApiError):
                codec.apply_chat_template(_CHAT, True, INLINE_SECONDS)
            with suppress(ApiError):
                await pool.call(user, "the chat", render, at, _CHAT, True, seconds=0.3)
            codec.chat_arguments, codec.bytes_of(5), codec.end_token
        finally:
            pool.close()

    trio.run(use)
    return "served", ""


def _prepare() -> None:
    """Imports what all of the processes need, and computes nothing: threads are not forked."""
    import compressed_tensors.compressors  # noqa: F401
    import torch

    import pie_inference.loading.assembly  # noqa: F401

    torch.set_num_threads(1)


def wrong_checkpoints(count: int, seed: int = 1) -> str:
    """What is wrong with so many damaged checkpoints, a line each, read by a process of its own."""
    command = [sys.executable, "-m", "attacks.checkpoints", str(count), str(seed)]
    place = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    return subprocess.run(command, env=place, stdout=subprocess.PIPE, text=True, check=True).stdout


def main(count: int, seed: int) -> None:
    """Reads them one after another, and prints what is wrong."""
    _prepare()
    sound, _ = undergo(lambda place: shutil.copytree(SOUND, place / "model"))
    if sound.kind != "served":
        raise RuntimeError(f"the sound checkpoint is not served: {sound.text}")
    for number in range(1, count + 1):
        outcome, size = undergo(partial(damaged, number, seed=seed))
        if wrong := judged(outcome, size, sound.bytes):
            print(f"number {number}: {wrong}", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

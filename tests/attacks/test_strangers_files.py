"""Files, answers and names that strangers made: a clear error or right, and nothing in between."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click  # noqa: F401 - its exceptions can be named
import pytest
from attacks.answers import Found, to_commands, to_sessions
from attacks.checkpoints import wrong_checkpoints
from attacks.damaged import SOUND

from pie_control.confined.pool import call_alone
from pie_control.errors import ApiError
from pie_control.models.tokenizer import TextCodec, encode
from pie_control.models.tokenizer_check import is_harmless, read_codec
from pie_control.models.tokenizer_files import UnusableTokenizer
from pie_inference.checkpoints.gguf_file import gguf_folder
from pie_inference.checkpoints.loader import read_config, stop_tokens
from pie_inference.errors import LoadError
from pie_inference.loading.check import check
from pie_inference.loading.network import naming
from pie_py.client.errors import ClientError, InferletFailed
from pie_py.client.functions import _object
from pie_py.client.remote.raised import rebuilt
from pie_py.client.remote.reach import Reach
from pie_py.client.remote.values import dumps
from pie_py.config.memory import group_limits
from pie_py.config.model import ModelConfig
from pie_py.config.printable import printable, quoted
from pie_py.config.services import ConfinedConfig
from pie_py.config.temporary import TemporaryFolder
from pie_py.models.checkpoint_files import BadFile, checkpoint_file, read_text

CONFINED = ConfinedConfig()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(SOUND, tmp_path / "model"))


def change(file: Path, **values: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


# Checkpoints


@pytest.mark.nightly
@pytest.mark.timeout(280)
def test_damaged_checkpoints_are_served_or_refused_by_name() -> None:
    assert wrong_checkpoints(4) == ""


@pytest.mark.parametrize("name", ["num_hidden_layers", "vocab_size", "hidden_size"])
def test_a_configuration_of_absurd_size_is_refused_before_it_is_looped_over(
    folder: Path, name: str
) -> None:
    change(folder / "config.json", **{name: 10**9})
    with pytest.raises(LoadError, match=r"config\.json"):
        check(str(folder))


def test_a_list_without_end_in_a_gguf_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "endless.gguf"
    head = b"GGUF\3\0\0\0" + bytes(8) + (1).to_bytes(8, "little")
    endless = (9).to_bytes(4, "little") + bytes(4) + (1 << 60).to_bytes(8, "little")
    file.write_bytes(head + (1).to_bytes(8, "little") + b"x" + endless)
    with pytest.raises(LoadError, match=str(file)):
        gguf_folder(file)


def test_names_and_links_stay_in_the_folder(folder: Path, tmp_path: Path) -> None:
    outside = tmp_path / "model.safetensors"
    shutil.move(folder / outside.name, outside)
    index = folder / "model.safetensors.index.json"
    for name in ("../model.safetensors", str(outside)):
        index.write_text(json.dumps({"weight_map": {"x": name}}))
        with pytest.raises(LoadError, match="leads out of its folder"):
            check(str(folder))
    index.unlink()
    (folder / outside.name).symlink_to(outside)
    with pytest.raises(LoadError, match="leads out of its folder"):
        check(str(folder))
    (folder / "chat_template.jinja").unlink()
    (folder / "chat_template.jinja").symlink_to("/etc/passwd")
    with pytest.raises(UnusableTokenizer, match=r"chat_template\.jinja leads out of its folder"):
        TextCodec(folder)
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")
    with pytest.raises(LoadError, match=r"config\.json is no file"):
        read_config(folder)


def test_links_of_the_hub_s_cache_are_followed(tmp_path: Path) -> None:
    snapshot = tmp_path / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "1").write_text("{}")
    (snapshot / "config.json").symlink_to("../../blobs/1")
    assert read_text(snapshot, "config.json") == "{}"
    (snapshot / "x.json").symlink_to("../../other")
    with pytest.raises(BadFile, match="is not there"):
        checkpoint_file(snapshot, "x.json")


@pytest.mark.parametrize("ends", [["x"], [2**70], {"a": 1}, list(range(5000)), -1])
def test_ends_that_are_no_tokens_are_refused_by_the_file_s_name(folder: Path, ends: Any) -> None:
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    with pytest.raises(LoadError, match=f"{folder}/generation_config.json"):
        stop_tokens(folder, {})


def test_whatever_goes_wrong_names_the_model() -> None:
    said = r"/a/b is damaged.*RecursionError: \\u001b"
    with pytest.raises(LoadError, match=said), naming(ModelConfig(source="/a/b")):
        raise RecursionError("\x1b")


# Tokenizers


def split(pattern: str) -> dict[str, Any]:
    pattern_of = {"Regex": pattern}
    return {"type": "Split", "pattern": pattern_of, "behavior": "Isolated", "invert": False}


def test_the_embedded_tokenizer_is_used_here() -> None:
    assert read_codec(SOUND, CONFINED).trusted


def test_a_pattern_that_backtracks_without_end_stops_no_server(folder: Path) -> None:
    change(folder / "tokenizer.json", pre_tokenizer=split("(a+)+$"))
    codec = read_codec(folder, CONFINED)
    assert not codec.trusted
    text = "a" * 40 + "b"
    with pytest.raises(ApiError, match="limit-exceeded"):  # of time, or of the library's own
        call_alone("a text", CONFINED.memory, encode, str(folder), text, seconds=0.3)
    with pytest.raises(ApiError, match="does not come to an end"):
        codec.encode(text)


def test_a_replacement_that_makes_a_gigabyte_of_a_word_is_refused(folder: Path) -> None:
    grows = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 1000}
    several = {"type": "Sequence", "normalizers": [grows] * 3}
    change(folder / "tokenizer.json", normalizer=several)
    with pytest.raises(UnusableTokenizer, match=r"tokenizer.json: reading it takes more than"):
        read_codec(folder, CONFINED)


def test_a_panic_of_the_library_is_an_error(folder: Path) -> None:
    change(
        folder / "tokenizer.json", normalizer={"type": "Precompiled", "precompiled_charsmap": ""}
    )
    with pytest.raises(UnusableTokenizer, match=r"tokenizer.json"):
        read_codec(folder, CONFINED)
    with pytest.raises(UnusableTokenizer, match=r"tokenizer\.json cannot be read"):
        TextCodec(folder)


def test_an_id_that_would_make_a_list_of_gigabytes_is_refused(folder: Path) -> None:
    described = json.loads((folder / "tokenizer.json").read_text())
    described["model"]["vocab"]["zzz"] = 4 * 10**8
    (folder / "tokenizer.json").write_text(json.dumps(described))
    with pytest.raises(UnusableTokenizer, match="the id 400000000"):
        read_codec(folder, CONFINED)


@pytest.mark.parametrize(
    "step",
    [
        {"normalizer": {"type": "Replace", "pattern": {"Regex": "a"}, "content": "b"}},
        {"normalizer": {"type": "Replace", "pattern": {"String": ""}, "content": "b"}},
        {"normalizer": {"type": "Prepend", "prepend": "x" * 1000}},
        {"pre_tokenizer": split("a*a*b")},
        {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits"}] * 40}},
        {"pre_tokenizer": {"type": "Sequence", "pretokenizers": None}},
        {"decoder": {"type": "CTC"}},
        {"model": {"type": "WordPiece", "vocab": {"a": 1}}},
        {"model": {"type": "BPE", "vocab": {"a": -1}}},
        {"added_tokens": [{"content": "x" * 1000, "id": 1}]},
        {"added_tokens": [{"content": "x", "id": 1}] * 10_000},
    ],
)
def test_what_is_not_known_to_be_harmless_is_not_taken_for_it(step: dict[str, Any]) -> None:
    described = json.loads((SOUND / "tokenizer.json").read_text())
    assert is_harmless(described)
    assert not is_harmless({**described, **step})


# Answers


@pytest.mark.nightly
def test_frames_of_a_hostile_server_end_in_named_errors() -> None:
    found = Found()
    to_sessions(4000, seed=3, found=found)
    to_commands(6, seed=4, found=found)
    assert not found.wrong
    assert found.malformed > 400
    assert found.errors > 100


def report(kind: str, **more: Any) -> dict[str, Any]:
    value = json.dumps({"$": "error", "t": kind, "v": ["on purpose"], "state": {}})
    return {
        "value": value, "text": f"{kind}: on purpose", "frames": [], "inner": None,
        "is_cause": False, **more,
    }  # fmt: skip


@pytest.mark.parametrize(
    "kind",
    [
        "builtins:SystemExit",
        "builtins:KeyboardInterrupt",
        "builtins:GeneratorExit",
        "builtins:StopIteration",
        "builtins:StopAsyncIteration",
        "asyncio.exceptions:CancelledError",
        "unittest.case:SkipTest",
        "bdb:BdbQuit",
        "click.exceptions:Exit",
        "_pytest.outcomes:Skipped",
        "builtins:print",
        "os:system",
    ],
)
def test_an_exception_that_means_something_to_the_caller_is_a_failed_inferlet(kind: str) -> None:
    assert type(rebuilt(report(kind), {}, str)) is InferletFailed


def test_an_exception_of_python_s_own_comes_as_it_is() -> None:
    for kind in (KeyError, json.JSONDecodeError):
        found = rebuilt(report(f"{kind.__module__}:{kind.__qualname__}"), {}, str)
        assert type(found) is kind


@pytest.mark.parametrize(
    "value",
    [
        None,
        "[" * 100_000,
        '{"$": "error", "t": "builtins:ValueError", "v": 5, "state": {}}',
        '{"$": "error", "t": "builtins:ValueError", "v": [], "state": [1]}',
        '{"$": "error", "t": "builtins:ValueError", "v": [], "state": {"with_traceback": 1}}',
        '{"$": "bytes", "v": "?"}',
        '{"$": "nothing", "v": {}}',
    ],
)
def test_a_report_of_nonsense_is_an_exception_all_the_same(value: str | None) -> None:
    frames = [["x.py", 1, "f\x1b[2J"]] * 50
    error = rebuilt(report("x", value=value, frames=frames), {}, str)
    shown = "".join(traceback.format_exception(error))
    assert "\x1b" not in shown


@pytest.mark.parametrize(
    "text",
    [
        *("{", "[" * 100_000, "[]", "null", '{"type": "cancel"}', '{"type": "execute"}'),
        '{"type": "execute", "number": [], "name": "x", "arguments": {}}',
        '{"type": "execute", "number": 1, "name": "x", "arguments": [1]}',
    ],
)
def test_events_of_nonsense_are_named_errors(text: str) -> None:
    instance: Any = SimpleNamespace(id="x-1")
    with pytest.raises(ClientError, match=r"a message of x-1, which cannot be read"):
        _object(text, instance)


def test_lines_come_from_files_that_were_sent_and_nowhere_else() -> None:
    def remote() -> None:
        raise ValueError("here")

    reach = Reach(remote)
    error = rebuilt(report("x", frames=[["/etc/passwd", 1, "f"]]), reach.types, reach.origin)
    shown = "".join(traceback.format_exception(error))
    assert "root:" not in shown
    assert "<inferlet /etc/passwd>" in shown
    assert dumps(1, "a number", str) == "1"


def test_what_strangers_wrote_is_printed_without_control_characters() -> None:
    assert printable("a\x1b[2J\x9b\u202e\ud800\nb") == "a\\u001b[2J\\u009b\\u202e\\ud800\\nb"
    assert printable("a\n\tb\r", lines=True) == "a\n\tb\\r"
    assert printable("x" * 300) == "x" * 200 + "…"
    assert quoted("a\x00") == "'a\\u0000'"
    family = "\U0001f468\u200d\U0001f469"
    assert printable(family) == family
    text = json.dumps({"a": "\x9b\U000e0001"}, ensure_ascii=False)
    assert json.loads(printable(text, None)) == {"a": "\x9b\U000e0001"}


# Operators

KILLED = """
import os, signal
from pie_py.config.temporary import TemporaryFolder
print(TemporaryFolder().path, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_folder_of_a_process_that_was_killed_goes_at_the_next_start(short_folder: Path) -> None:
    place = {**os.environ, "TMPDIR": str(short_folder)}
    command = [sys.executable, "-c", KILLED]
    left = subprocess.run(command, env=place, stdout=subprocess.PIPE, text=True, check=False).stdout
    assert os.listdir(short_folder) == [Path(left.strip()).name]
    other = short_folder / "pie-others"
    other.mkdir()
    before = tempfile.tempdir
    tempfile.tempdir = str(short_folder)
    try:
        with TemporaryFolder() as mine, TemporaryFolder() as second:
            assert {*os.listdir(short_folder)} == {mine.name, second.name, other.name}
    finally:
        tempfile.tempdir = before
    assert os.listdir(short_folder) == [other.name]


def test_no_folder_is_left_where_no_file_can_be_locked(
    short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(_handle: int, _how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(tempfile, "tempdir", str(short_folder))
    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(OSError, match="No locks"):
        TemporaryFolder()
    assert os.listdir(short_folder) == []


@pytest.mark.parametrize(
    ("mount", "group", "top", "files"),
    [
        ("/ {} rw - cgroup2 cgroup2 rw", "0::/a/b", "", ("memory.max", "memory.current")),
        (
            "/ {} rw - cgroup cgroup rw,memory",
            "4:memory:/a/b",
            "",
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ),
        ("/pod {} rw - cgroup2 cgroup2 rw", "0::/pod/a/b", "", ("memory.max", "memory.current")),
        ("/../.. {} rw - cgroup2 cgroup2 rw", "0::/", "", ("memory.max", "memory.current")),
    ],
)
def test_limits_of_nested_control_groups(
    tmp_path: Path, mount: str, group: str, top: str, files: tuple[str, str]
) -> None:
    root = tmp_path / "groups"
    inner = root / "a" / "b"
    inner.mkdir(parents=True)
    # Before it a mount that any user can make, at a place of any name.
    odd = b"1 2 0:3 / /home/mallory/a\xff\x0cb\xc2\x85c rw - fuse.x x rw\n"
    own = f"1 2 0:3 {mount.format(root)}\n".encode()
    (tmp_path / "mountinfo").write_bytes(odd + own)
    (tmp_path / "cgroup").write_text(f"3:cpu:/\n{group}\n")
    where = root if group == "0::/" else inner
    for folder, limit in ((where, "max"), (root / "a", "5000"), (root, "9000")):
        if folder != where or limit == "max":
            (folder / files[0]).write_text(f"{limit}\n")
            (folder / files[1]).write_text("1000\n")
            (folder / "memory.stat").write_text("inactive_file 100\ntotal_inactive_file 100\n")
    if where == root:
        (root / files[0]).write_text("9000\n")
        assert (9000, 900) in group_limits(tmp_path)
    else:
        assert {(5000, 900), (9000, 900)} <= set(group_limits(tmp_path))

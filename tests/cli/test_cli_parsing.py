from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from pie_py.cli import console, main
from pie_py.cli.names import find_name
from pie_py.cli.server_config import server_config
from pie_py.cli.target import BadTarget, find_target
from pie_py.config.endpoint import DEFAULT_ENDPOINT
from pie_py.config.keys import ClientKey, KeyStore, api_key, find_user

ROOT = Path(__file__).parents[2]


def invoke(*args: str, **environment: str) -> Result:
    return CliRunner().invoke(main, args, env=environment)


def test_versions() -> None:
    for args in (("--version",), ("version",)):
        result = invoke(*args)
        assert result.exit_code == 0
        assert result.stdout.startswith("pie-py 0.1.0, contract pie:inferlet 0.1.0")


def test_looking_at_the_version_imports_nothing_heavy() -> None:
    code = (
        "import sys; from pie_py.cli import main\ntry: main(['--version'])\nexcept SystemExit:"
        " pass\nheavy = {'zmq', 'pydantic', 'numpy', 'torch', 'rich', 'anyio', 'wasmtime'} &"
        " set(sys.modules)\nassert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize(
    ("modules", "later"),
    [
        ("pie_py.cli.run, pie_py.client, pie_py.cli.stream", "pydantic structlog numpy rich"),
        ("pie_control.__main__", "pydantic structlog numpy trio pie_control.server"),
        ("pie_py.config.settings as of; of.read_settings(spare_instances=1)", "pydantic_settings"),
    ],
)
def test_what_a_first_token_waits_for_imports_little(modules: str, later: str) -> None:
    """A run that finds a server, what the control process has before it starts a worker, and a
    configuration of options alone.
    """
    code = f"import sys, {modules}; print(*sorted({{*'{later}'.split()}} & {{*sys.modules}}))"
    env = {name: value for name, value in os.environ.items() if not name.startswith("PIE_PY_")}
    found = subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, env=env)
    assert found.split() == []


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        (("complete",), "`pie-py ask`"),
        (("list",), "`pie-py models`"),
        (("servve",), "`pie-py serve`"),
        (("help",), "`pie-py --help`"),
        (("keys", "ad"), "`pie-py keys add`"),
        (("keys", "new", "ann"), "`pie-py keys add`"),
        (("mcp", "rm", "search"), "`pie-py mcp remove`"),
        (("adapters", "remove"), "`pie-py adapters unload`"),
        (("programs", "delete"), "`pie-py programs rm`"),
        (("ask", "--sistem", "x", "what?"), "--system"),
        (("serve", "--model", "smollm3"), "smollm2"),
        (("run", "text_completion", "-m", str(ROOT / "READNE.md")), "README.md"),
    ],
)
def test_what_is_near_is_told(wrong: tuple[str, ...], meant: str) -> None:
    result = invoke(*wrong)
    assert result.exit_code == 2
    assert "did you mean" in result.stderr.lower()
    assert meant in result.stderr


def test_a_model_is_found_by_a_short_name() -> None:
    names = ["SmolLM2-135M-Instruct.Q4_1.gguf", "Qwen/Qwen3-0.6B", "qwen3-0.6b-base", "pie-tiny"]
    assert find_name("smollm2", names) == names[0]
    assert find_name("qwen3-0.6b", names) == names[1]
    assert find_name("pie-tiny", names) == "pie-tiny"
    assert find_name("qwen3", names) is None  # which of the two?
    assert find_name("gpt", names) is None


def test_targets(tmp_path: Path) -> None:
    source = tmp_path / "one.py"
    source.write_text("x = 1")
    assert find_target(str(source)) is not None
    component = tmp_path / "two.bin"
    component.write_bytes(b"\0asm\x0d\0\x01\0")
    crate = tmp_path / "three"
    crate.mkdir()
    (crate / "Cargo.toml").write_text("[package]")
    folder = tmp_path / "four"
    folder.mkdir()
    (folder / "inferlet.toml").write_text(
        'name = "quad"\n[entries]\npython = "main.py"\nrust = "rust"\n'
    )
    (folder / "main.py").write_text("")
    found = [find_target(str(p)) for p in (source, component, crate, folder)]
    assert [(t.kind, t.name) for t in found if t is not None] == [
        ("python", "one"),
        ("component", "two"),
        ("crate", "three"),
        ("python", "quad"),
    ]
    assert find_target("an_uploaded_name") is None
    library = find_target("text_completion")
    assert library is not None
    assert library.path == find_target(str(ROOT / "inferlets" / "text_completion")).path  # type: ignore[union-attr]

    (tmp_path / "five").mkdir()
    (tmp_path / "text").write_text("hello")
    os.mkfifo(tmp_path / "pipe.wasm")
    for text, entry, message in (
        (str(tmp_path / "five"), None, "Cargo.toml nor .*: no inferlet is in it"),
        (str(tmp_path / "text"), None, "neither a Python source"),
        (str(folder), "rust", "which does not exist"),
        (str(folder), "cobol", "no entry 'cobol'; there are python, rust"),
        (str(source), "rust", "--entry chooses"),
        (str(tmp_path / "nothing"), None, "does not exist"),
        (str(tmp_path / "pipe.wasm"), None, "neither a file nor a folder"),
    ):
        with pytest.raises(BadTarget, match=message):
            find_target(text, entry)
    (folder / "inferlet.toml").write_text("name = ")
    with pytest.raises(BadTarget, match=r"inferlet\.toml: "):
        find_target(str(folder))


NONE: dict[str, Any] = dict.fromkeys(("endpoint", "file", "threads", "max_instances"), None)
NONE["models"] = ()


def test_configuration_comes_from_defaults_file_environment_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "pie.toml"
    file.write_text(
        'endpoint = "tcp://127.0.0.1:1111"\nmax_instances = 11\nworker_threads = 3\n'
        '[scheduler]\nprompt_tokens = 77\n[[models]]\nsource = "from-file"\ndtype = "float32"\n'
    )
    monkeypatch.setenv("PIE_PY_MAX_INSTANCES", "22")
    monkeypatch.setenv("PIE_PY_ENDPOINT", "tcp://127.0.0.1:2222")  # of clients
    config = server_config(**{**NONE, "file": file, "threads": 4, "kv_pages": 99})
    assert config.endpoint == "tcp://127.0.0.1:1111"
    assert (config.max_instances, config.worker_threads) == (22, 4)
    assert config.scheduler.prompt_tokens == 77
    assert [(m.source, m.dtype, m.kv_pages) for m in config.models] == [
        ("from-file", "float32", 99)
    ]
    config = server_config(**{**NONE, "models": ("a", "b"), "page_size": "8"})
    assert config.endpoint == DEFAULT_ENDPOINT
    assert [(m.source, m.page_size) for m in config.models] == [("a", 8), ("b", 8)]
    file.write_text("unknown_field = 1\n")
    with pytest.raises(click.UsageError, match="unknown_field"):
        server_config(**{**NONE, "file": file})
    file.write_text("= 1\n")
    with pytest.raises(click.UsageError, match=r"pie\.toml"):
        server_config(**{**NONE, "file": file})


def listed(*options: str) -> list[tuple[Any, ...]]:
    rows = json.loads(invoke("keys", "list", "--json", *options).stdout)
    return [tuple(row.values()) for row in rows]


def test_keys(tmp_path: Path) -> None:
    data = ("--data-folder", str(tmp_path))
    file = tmp_path / "ann.json"
    result = invoke("keys", "add", "ann", "--output", str(file), *data)
    assert result.exit_code == 0, result.output
    assert result.stdout == f"{file}\n"
    assert json.loads(file.read_text())["user"] == "ann"
    assert file.stat().st_mode & 0o077 == 0
    assert listed(*data) == [("ann", None, None, None)]
    config = tmp_path / "pie.toml"  # as the operators' guide does it
    config.write_text(f'data_folder = "{data[1]}"\n')
    assert listed("--config", str(config)) == listed(*data)
    phone = ("--name", "phone", "--days", "2", "--output", str(tmp_path / "phone"))
    assert invoke("keys", "add", "ann", *phone, *data).exit_code == 0
    [_, (*named, until, used)] = listed(*data)
    assert (named, used) == (["ann", "phone"], None)
    assert 1 < (datetime.fromisoformat(until) - datetime.now(UTC)) / timedelta(days=1) < 2
    assert find_user(api_key(ClientKey.read(tmp_path / "phone")), KeyStore(tmp_path))
    assert listed(*data)[1][3] > 0
    assert invoke("keys", "remove", "ann", "--name", "phone", *data).exit_code == 0
    rotated = invoke("keys", "rotate", "ann", "--output", str(tmp_path / "new"), *data)
    assert rotated.exit_code == 0, rotated.output
    (admitted,) = KeyStore(Path(data[1])).users()
    assert json.loads((tmp_path / "new").read_text())["public"] == admitted
    assert json.loads(file.read_text())["public"] != admitted
    lost = invoke("keys", "rotate", "ann", "--output", "/proc/nope/x", *data)
    assert "cannot be written" in lost.stderr
    assert [*KeyStore(Path(data[1])).users()] == [admitted]
    assert "no user 'bob'" in invoke("keys", "rotate", "bob", "--output", "y", *data).stderr
    assert invoke("keys", "remove", "ann", *data).exit_code == 0
    assert listed(*data) == []


def test_options_of_http_and_mcp(tmp_path: Path) -> None:
    config = server_config(
        http_hosts=("example.com", "*.example.org:*"),
        http_networks=("10.0.0.0/8",),
        mcp_servers=("files=python 'my server.py' --root /", "far=https://example.com/mcp"),
        **NONE,
    )
    assert config.http.allow == ("example.com", "*.example.org:*")
    assert [str(network) for network in config.http.allow_networks] == ["10.0.0.0/8"]
    files, far = config.mcp.servers["files"], config.mcp.servers["far"]
    assert (files.command, files.args) == ("python", ("my server.py", "--root", "/"))
    assert far.url == "https://example.com/mcp"
    file = tmp_path / "pie.toml"
    file.write_text(
        "[http]\nallow = ['a.example']\nconcurrent = 1\n[mcp.servers.x]\ncommand = 'x'\n"
    )
    config = server_config(http_hosts=("b.example",), **{**NONE, "file": file})
    assert config.http.allow == ("b.example",), "options win"
    assert config.http.concurrent == 1
    assert config.mcp.servers["x"].command == "x"


def test_a_terminal_is_shown_the_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(console, "LOOK_SECONDS", 0.01)
    clock = itertools.count()
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))  # a second at each look
    shown, looks = "", 0
    with console.alive("reads"):
        while "2 s reads" not in shown:
            looks += 1
            assert looks < 1000, shown
            threading.Event().wait(0.01)
            shown += capsys.readouterr().err
    assert "\r" in shown
    assert " 0 s" not in shown


def test_options_of_models_and_of_the_server() -> None:
    config = server_config(
        **{**NONE, "models": ("one", "two")},
        kv_dtype="fp8",
        gpu_memory_utilization=0.5,
        tensor_parallel_size=2,
    )
    assert config.tensor_parallel_size == 2
    assert [(m.kv_dtype, m.gpu_memory_utilization) for m in config.models] == [("fp8", 0.5)] * 2
    config = server_config(**NONE)  # one device, and most of it
    assert config.tensor_parallel_size == 1
    assert config.models[0].gpu_memory_utilization == 0.9

"""Wrong files, variables and options end the command line with one line and a status, never a
traceback.
"""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, ClassVar

import pytest
from click.testing import CliRunner, Result

import pie_py.config.endpoint
from pie_py.cli import main
from pie_py.cli.target import BadTarget, find_target
from pie_py.client import RpcError, ServerUnreachable, sync
from pie_py.config.http import HttpConfig
from pie_py.config.keys import ClientKey, KeyStore


def invoke(*args: str | Path, **environment: str) -> Result:
    return CliRunner().invoke(main, list(map(str, args)), env=environment)


def refused(result: Result, status: int) -> str:
    """What a command that fails says, which is one line of error."""
    assert result.exit_code == status, (result.output, result.exception)
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.stdout == ""
    told = [line for line in result.stderr.splitlines() if line.lower().startswith("error: ")]
    assert len(told) == 1
    assert result.stderr.splitlines()[-1] == told[0]
    return told[0]


# Configuration

NOBODY = "tcp://127.0.0.1:1"


@pytest.mark.parametrize(
    ("typed", "environment", "status", "told"),
    [
        ("serve --config {}/latin.toml", {}, 2, "is no TOML file: it is not UTF-8 (invalid start"),
        ("run text_completion --config {}/latin.toml", {}, 2, "at byte 12"),
        ("check-config {}/long.toml", {}, 2, "long.toml: Exceeds the limit (4300 digits)"),
        ("serve --config {}/networks.toml", {}, 2, "http.deny_networks.0: '10.0.0.1/8'"),
        ("serve --http 0.0.0.0:0 --model no/such-model", {}, 2, "`pie-py keys add USER` makes"),
        ("serve --http 8000", {}, 2, "gateway.http: '8000' is not HOST:PORT"),
        ("serve --allow-http-network 10.0.0.1/8", {}, 2, "has host bits set"),
        ("serve --allow-http-network fd00::7/16", {}, 2, "give fd00::/16"),
        ("serve --allow-http-network localhost", {}, 2, "'localhost' is no network; give one as"),
        ("serve", {"PIE_PY_LIMITS": '{"memory": null}'}, 2, "limits.memory: Input should be"),
        ("serve", {"PIE_PY_DATA_FOLDER": ""}, 2, "PIE_PY_DATA_FOLDER: a folder is wanted, and"),
        ("check-config {}/bom.toml", {}, 2, "bom.toml: limits.memry: no such setting"),
        ("serve", {"PIE_PY_LOG_LEVEL": "debug"}, 2, "did you mean PIE_PY_LOG__LEVEL?"),
        ("serve --model {0} --model {0}", {}, 2, "two models are called"),
        ("serve --model {}/latin.toml", {}, 2, "is no model: a .gguf file is"),
        ("serve --model=", {}, 2, "a model's name is empty"),
        ("check-config {}/adapter.toml", {}, 2, "the adapter mine of pie-tiny: there is no folder"),
        ("check-config {}/tls.toml", {}, 2, "gateway.tls_key: there is no file /nowhere/key"),
        ("serve --max-instances 0", {"PIE_PY_MAX_INSTANCES": "5"}, 2, "max_instances: Input"),
        ("serve", {"PIE_PY_MODELS": "notjson"}, 2, "PIE_PY_MODELS is no JSON"),
        ("keys list", {"pie_py_limits": "notjson"}, 2, "pie_py_limits is no JSON"),
        ("keys add ann", {"PIE_PY_HTTP__ALLOW": "notjson"}, 2, "PIE_PY_HTTP__ALLOW is no JSON"),
        ("keys remove ann", {"PIE_PY_LIMITS__MEMORY": "abc"}, 2, "MEMORY: Input should be"),
        ("serve --served-model-name =pie-tiny", {}, 2, "the further name is missing"),
        ("ps --endpoint tcp://127.0.0.1:*", {}, 1, "tcp://127.0.0.1:* has no port to connect to"),
        ("kill x --endpoint tcp://127.0.0.1:*", {}, 1, "has no port to connect to"),
        ("run text_completion --endpoint tcp://127.0.0.1:*", {}, 2, "has no port to connect to"),
        ("build {}", {"PIE_PY_MODELS": "notjson"}, 2, "PIE_PY_MODELS is no JSON"),
        ("serve --allow-http http://example.com/", {}, 2, "a rule is HOST"),
        ("serve --mcp nothing", {}, 2, "NAME=COMMAND"),
        ("serve --mcp x=", {}, 2, "NAME=COMMAND"),
        ("serve --mcp x='", {}, 2, "No closing quotation"),
        ("serve --mcp a/b=x", {}, 2, "a name has"),
        ("serve --gpu-memory-utilization 2", {}, 2, "--gpu-memory-utilization"),
        ("serve --kv-dtype int3", {}, 2, "--kv-dtype"),
        ("serve --quantize int3", {}, 2, "--quantize"),
        ("serve --tensor-parallel-size 0", {}, 2, "--tensor-parallel-size"),
        ("serve --page-size 17", {}, 2, "--page-size"),
        ("serve --dtype greedy", {}, 2, "--dtype"),
        ("nonsense", {}, 2, "no command 'nonsense'"),
        *((command, {}, 2, "Missing argument") for command in ("run", "kill")),
        *((f"{command} missing.py", {}, 2, "missing.py") for command in ("run", "upload", "build")),
        ("run some/folder", {}, 2, "some/folder"),
        ("run text_completion --endpoint nowhere", {}, 2, "nowhere"),
        ("run text_completion --model x --endpoint tcp://127.0.0.1:1", {}, 2, "--endpoint names"),
        *(
            (f"{command} --endpoint {NOBODY}", {}, 1, f"no server at {NOBODY}; `pie-py serve`")
            for command in ("ps", "models", "programs", "kill x", "logs x", "launch x")
        ),
        (f"adapters list --endpoint {NOBODY}", {}, 1, "`pie-py serve`"),
        (f"adapters load x . --endpoint {NOBODY}", {}, 1, "`pie-py serve`"),
    ],
)
def test_what_is_wrong_is_told_in_a_line(
    tmp_path: Path, typed: str, environment: dict[str, str], status: int, told: str
) -> None:
    (tmp_path / "latin.toml").write_bytes(b'endpoint = "\xff\xfe"\n')
    (tmp_path / "long.toml").write_text(f"max_instances = {'1' * 5000}")
    (tmp_path / "bom.toml").write_text("[limits]\nmemry = 1\n", encoding="utf-8-sig")
    (tmp_path / "adapter.toml").write_text("[[models]]\nadapters.mine = '/nowhere'\n")
    (tmp_path / "tls.toml").write_text("[gateway]\ntls_key = '/nowhere/key'\n")
    (tmp_path / "networks.toml").write_text("[http]\ndeny_networks = ['10.0.0.1/8']\n")
    given = {"PIE_PY_DATA_FOLDER": str(tmp_path), **environment}
    line = refused(invoke(*typed.format(tmp_path).split(), **given), status)
    assert told in line
    assert "notjson" not in line, "it may be a secret"


def test_wrong_fields_are_told_with_their_file(tmp_path: Path) -> None:
    file = tmp_path / "pie.toml"
    file.write_text(
        'max_instances = "many"\nnonsense = 1\n[[models]]\nsource = "pie-tiny"\nkv_pages = -1\n'
    )
    told = refused(invoke("serve", "--config", file), 2)
    for place in ("max_instances", "nonsense", "models.0.kv_pages"):
        assert f"{file}: {place}: " in told
    assert "nonsense: no such setting; there are endpoint, data_folder, " in told
    told = refused(invoke("serve", "--config", file, "--max-instances", "0"), 2)
    assert "max_instances: " in told
    file.write_text('[quotas.ada]\nwieght = 2\n[mcp.servers.x]\ncomand = "x"\n')
    told = refused(invoke("serve", "--config", file), 2)
    assert "quotas.ada.wieght: no such setting; did you mean `weight`?" in told
    assert "mcp.servers.x.comand: no such setting; did you mean `command`?" in told
    file.write_text('[models]\nsource = "pie-tiny"\n[http]\nallow = "example.org"\n')
    told = refused(invoke("serve", "--config", file), 2)
    assert "models: it is a table of several: write [[models]]" in told
    assert "http.allow: it is a list: allow = [...]" in told
    told = refused(invoke("serve", PIE_PY_MAX_INSTANCE="3"), 2)
    assert "PIE_PY_MAX_INSTANCE in the environment: no such setting; did you mean" in told


def test_a_configuration_from_a_pipe_is_read(tmp_path: Path) -> None:
    """As `serve --config <(...)` gives it."""
    os.mkfifo(pipe := tmp_path / "pipe")
    threading.Thread(target=pipe.write_text, args=('data_folder = "~/mine"',), daemon=True).start()
    result = invoke("check-config", pipe, HOME=str(tmp_path))
    assert f"data in {tmp_path / 'mine'}" in result.output


@pytest.mark.parametrize("command", ["run", "build"])
@pytest.mark.parametrize("name", ["program.py", "program", "inferlet.toml"])
def test_a_file_that_cannot_be_read(tmp_path: Path, command: str, name: str) -> None:
    (tmp_path / name).symlink_to("/proc/self/mem")  # an I/O error, also for root
    target = tmp_path if name == "inferlet.toml" else tmp_path / name
    told = refused(invoke(command, target), 2)
    assert f"{tmp_path / name} cannot be read: Input/output error" in told


def test_networks_survive_the_way_to_the_control_process() -> None:
    config = HttpConfig(allow_networks=("10.0.0.0/8", "::1", "192.168.1.5"))  # type: ignore[arg-type]
    assert list(map(str, config.allow_networks)) == ["10.0.0.0/8", "::1/128", "192.168.1.5/32"]
    assert HttpConfig.model_validate_json(config.model_dump_json()) == config


# Targets


@pytest.mark.parametrize(
    ("described", "told"),
    [
        ('name = "x"\nentries = "main.py"\n', "entries is 'main.py', which is no table"),
        ('name = "x"\nentries = ["main.py"]\n', "which is no table"),
        (
            'name = "x"\n[entries]\npython = 3\n',
            "entry python is 3, which is no text; write python",
        ),
        ('name = "x"\n[entries]\npython = "main.py"\nrust = []\n', "entry rust is"),
        ('name = 3\n[entries]\npython = "main.py"\n', "name is 3, which is no text"),
        (
            'name = "x"\nadapters = "cml"\n[entries]\npython = "main.py"\n',
            "adapters is 'cml'; write [adapters.MODEL]",
        ),
        (
            'name = "x"\n[entries]\npython = "main.py"\n[adapters]\ncml = "folder"\n',
            "write [adapters.MODEL]",
        ),
        (
            'name = "x"\n[entries]\npython = "main.py"\n[adapters.m]\ncml = "nowhere"\n',
            "nowhere, which is no folder",
        ),
    ],
)
@pytest.mark.parametrize("command", ["run", "build"])
def test_a_description_of_other_types(
    tmp_path: Path, command: str, described: str, told: str
) -> None:
    (tmp_path / "main.py").write_text("")
    (tmp_path / "inferlet.toml").write_text(described)
    with pytest.raises(BadTarget) as found:
        find_target(str(tmp_path))
    assert str(found.value).startswith(f"{tmp_path / 'inferlet.toml'}: ")
    assert told in str(found.value)
    result = invoke(command, tmp_path)
    assert result.exit_code == 2
    assert told in " ".join(result.stderr.split())


@pytest.mark.parametrize("option", ["--kv-pages", "--threads"])
def test_an_option_of_zero_is_told_beside_a_running_server(
    monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    told = refused(
        invoke("run", "text_completion", option, "0", "--endpoint", "tcp://127.0.0.1:1"), 2
    )
    assert "--endpoint names a running server" in told
    monkeypatch.setattr(pie_py.config.endpoint, "answers", lambda endpoint: True)
    told = refused(invoke("run", "text_completion", option, "0"), 2)
    assert "greater than" in told


# Endpoints


@pytest.mark.parametrize("host", ["*", "a@b", "x" * 70, "a..b"])
def test_hosts_that_are_none(tmp_path: Path, host: str) -> None:
    key = KeyStore(tmp_path).add("ann")
    endpoint = f"tcp://{host}:7743"
    with pytest.raises(ServerUnreachable) as found, sync.Client(endpoint, key):
        pass
    assert endpoint in str(found.value)


# Keys


def test_a_key_whose_file_cannot_be_written_is_not_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    data = ("--data-folder", tmp_path / "data")
    for output in ("/proc/nope/x", tmp_path / "file" / "x"):
        told = refused(invoke("keys", "add", "bob", "--output", output, *data), 1)
        assert f"{output} cannot be written, so bob has got no key" in told
        assert "--output" in told
        assert invoke("keys", "list", "--json", *data).stdout == "[]\n"
    file = tmp_path / "bob.json"
    assert invoke("keys", "add", "bob", "--output", file, *data).exit_code == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_key_that_was_there_stays(tmp_path: Path) -> None:
    KeyStore(tmp_path).add("bob")
    add = ("keys", "add", "bob", "--output", "/proc/nope/x", "--data-folder", tmp_path)
    assert "has a key already" in refused(invoke(*add), 1)
    assert [key.user for key in KeyStore(tmp_path).admitted()] == ["bob"]


def test_a_damaged_key_of_the_server_leaves_no_key_of_the_user(tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "server.json").write_text("{}")
    add = ("keys", "add", "bob", "--output", tmp_path / "bob", "--data-folder", tmp_path)
    assert "is damaged" in refused(invoke(*add), 1)
    assert KeyStore(tmp_path).users() == {}


def test_keys_that_a_newer_one_has_written(tmp_path: Path) -> None:
    written = tmp_path / "bob.json"
    KeyStore(tmp_path).add("bob").write(written)
    for file in (written, tmp_path / "keys" / "server.json"):
        fields = json.loads(file.read_text())
        assert fields.pop("format") == 1
        file.write_text(json.dumps(fields))  # as they were before they had one
    assert ClientKey.read(written).server == KeyStore(tmp_path).server_pair().public
    written.write_text(json.dumps({"format": 2, "seed": "x"}))
    told = refused(invoke("ps", "--key", written, "--endpoint", "tcp://127.0.0.1:9"), 1)
    assert "format 2" in told
    assert "a newer one has written it" in told


def test_a_data_folder_that_cannot_be_used(tmp_path: Path) -> None:
    add = ("keys", "add", "bob", "--output", tmp_path / "bob", "--data-folder", "/proc/nope")
    told = refused(invoke(*add), 1)
    assert "/proc/nope" in told
    assert "--data-folder" in told
    assert not os.path.exists(tmp_path / "bob")


@pytest.mark.parametrize(
    "command",
    [
        ("run", "text_completion", "--model", "pie-tiny"),
        ("build", "--runtime", "javascript"),
        ("chat", "-m", "pie-tiny"),
        ("new", "{}/program"),
        ("keys", "add", "ada"),
    ],
)
def test_a_home_that_cannot_be_written(short_folder: Path, command: tuple[str, ...]) -> None:
    home = short_folder / "home"
    home.write_text("not a folder")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("XDG_", "PIE_PY_"))}
    done = subprocess.run(
        [sys.executable, "-m", "pie_py", *(word.format(home) for word in command)],
        env={**kept, "HOME": str(home), "TMPDIR": str(short_folder)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    told = done.stderr.splitlines()[-1]
    assert (done.returncode, told[:7].lower()) == (1, "error: "), done.stderr
    assert str(home) in told
    assert "Not a directory" in told
    assert "Traceback" not in done.stderr


FULL = """
import errno, os
from pie_py.cli import _of_files
print(_of_files(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/from", None, "/to")))
try:
    os.write(os.open("/dev/full", os.O_WRONLY), b"1")
except OSError as error:
    print(_of_files(error))
"""


def test_a_full_disk_is_not_told_of_another_file() -> None:
    done = subprocess.run([sys.executable, "-c", FULL], stdout=subprocess.PIPE, text=True)
    assert done.stdout.splitlines() == [
        "/to cannot be used: No space left on device",
        "a file cannot be used: No space left on device",
    ]


@pytest.mark.parametrize(
    ("command", "redirected", "said"),
    [
        ("models", ">&-", "Bad file descriptor"),
        ("models", ">/dev/full", "No space left on device"),
        ("--help", ">/dev/full", "No space left on device"),
        ("--version", ">&-", "Bad file descriptor"),
        ("run {}", ">/dev/full", "No space left on device"),
    ],
)
def test_a_standard_output_that_cannot_be_written(
    tmp_path: Path, command: str, redirected: str, said: str
) -> None:
    (tmp_path / "hi.py").write_text("def main(): return 'hi'")
    words = [sys.executable, "-m", "pie_py", *command.format(tmp_path / "hi.py").split()]
    shell = ["sh", "-c", f'exec "$@" {redirected}', "sh", *words]
    done = subprocess.run(shell, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1, done.stderr
    assert done.stderr.splitlines()[-1] == f"Error: standard output cannot be used: {said}"


def test_standard_files_that_are_closed(tmp_path: Path) -> None:
    shell = ["sh", "-c", 'exec "$@" <&- 2>&-', "sh", sys.executable, "-m", "pie_py", "version"]
    assert b"contract" in subprocess.run(shell, stdout=subprocess.PIPE, check=True).stdout


def test_an_address_that_is_taken_is_told_before_a_model_is_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for options in (("--endpoint", f"tcp://{address}"), ("--http", address)):
            told = refused(invoke("serve", *options), 1)
            assert f"{address} is in use already" in told


# Commands for a server


class Served:
    """Stands for the client of a server that has some instances and models."""

    alive: ClassVar[dict[str, bool]] = {"a": True, "c": False}
    served: ClassVar[list[dict[str, Any]]] = []

    def __init__(self, *address: Any) -> None:
        self.asked: list[str] = []

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def kill(self, instance: str) -> bool:
        if instance == "lost":
            raise ServerUnreachable("the server has gone")
        if instance not in self.alive:
            raise RpcError("not-found", f"no instance {instance!r}")
        return self.alive[instance]

    def models(self, *, unloaded: bool = False) -> list[dict[str, Any]]:
        return self.served


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> type[Served]:
    monkeypatch.setattr(sync, "Client", Served)
    return Served


@pytest.mark.usefixtures("server")
def test_kill_goes_on_after_one_that_is_not_found() -> None:
    result = invoke("kill", "x", "a", "y", "c")
    assert result.exit_code == 1
    assert result.stderr.splitlines() == [
        "error: not-found: no instance 'x'",
        "a is killed",
        "error: not-found: no instance 'y'",
        "c had ended already",
    ]
    assert invoke("kill", "a", "c").exit_code == 0
    assert refused(invoke("kill", "lost", "a"), 1) == "error: the server has gone"


@pytest.mark.usefixtures("server")
def test_a_program_that_cannot_be_read_is_not_uploaded(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.symlink_to("/proc/self/mem")
    told = refused(invoke("upload", file), 2)
    assert f"{file} cannot be read: Input/output error" in told


def test_models_while_the_worker_starts(
    server: type[Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    for options in ((), ("--traits",), ("--json",)):
        told = refused(invoke("models", "pie-tiny", *options), 1)
        assert "the worker is starting" in told
        assert "no model is called" not in told
    listed = invoke("models")
    assert listed.exit_code == 0
    assert listed.stderr.startswith("no model is served at the moment: the worker is starting")
    monkeypatch.setattr(server, "served", [{"name": "pie-tiny", "traits": []}])
    assert "pie-tiny" in invoke("models", "pie-tiny").stdout
    assert "no model is called 'x'; there are: pie-tiny" in refused(invoke("models", "x"), 2)

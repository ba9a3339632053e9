"""Parts of libraries that a process starts without."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from pie_py.config.left_out import left_out

FILES = {
    "__init__": "from shed import heavy, light",
    "light": "",
    "heavy": "from shed import circle\nweight = 1",
    # It is to be run within `heavy`, and so once.
    "circle": "import sys, shed.heavy\nassert 'weight' not in vars(sys.modules['shed.heavy'])",
    "further": "from shed.heavy import weight",
}


@pytest.fixture
def shed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shed").mkdir()
    for name, text in FILES.items():
        (tmp_path / "shed" / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    for name in ("shed", *(f"shed.{name}" for name in FILES)):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with left_out("shed.heavy"):
        package = importlib.import_module("shed")
        assert not hasattr(package.heavy, "weight")
    assert "shed.circle" not in sys.modules
    assert not hasattr(package, "heavy")


@pytest.mark.usefixtures("shed")
@pytest.mark.parametrize("first", ["heavy", "circle", "further"])
def test_a_part_that_was_left_out_comes_before_any_further_one(first: str) -> None:
    module = importlib.import_module(f"shed.{first}")
    assert module is sys.modules[f"shed.{first}"]
    assert module.__spec__ is not None
    assert str(module.__spec__.origin).endswith(f"{first}.py")
    assert sys.modules["shed"].heavy.weight == 1
    importlib.reload(sys.modules["shed.light"])


def test_what_is_imported_already_stays() -> None:
    with left_out("json.decoder"):
        from json.decoder import JSONDecoder
    assert JSONDecoder().decode("1") == 1


@pytest.mark.nightly
def test_a_worker_has_all_of_pytorch_once_more_of_it_is_wanted() -> None:
    code = (
        "import sys, pie_inference.__main__\n"
        "assert not {'torch._meta_registrations', 'rich'} & {*sys.modules}\n"
        "import torch._prims, torch\n"
        "from torch._subclasses.fake_tensor import FakeTensorMode\n"
        "with FakeTensorMode():\n"
        "    print(*torch.linalg.qr(torch.ones(3, 2)).Q.shape)\n"
        "print(torch._meta_registrations.meta_index_Tensor.__name__)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.stdout.split() == ["3", "2", "meta_index_Tensor"], found.stderr

"""What `docs/cluster.md` has a new operator type, as it stands there, on machines that are network
namespaces: each has a home without anything, the default ports, and the default model.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.clusters import processes_of, wait_for
from support.documents import Reader
from support.namespaces import Network, missing
from support.shown_blocks import blocks

from pie_cluster.machines import operate

pytest.importorskip("ray", reason="clusters need Ray: pip install 'pie-py[cluster]'")
pytestmark = [pytest.mark.slow, pytest.mark.nightly]

CLUSTER = ".local/share/pie_py/cluster"  # below a home


def shown(text: str) -> str:
    """The block of the page that has a text."""
    return next(one.code for one in blocks("docs/cluster.md") if text in one.code)


class Operators:
    """Of machines of one network; each has a home."""

    def __init__(self, folder: Path, network: Network) -> None:
        self.network = network
        self.homes = {name: folder / name for name in network.addresses}
        for home in self.homes.values():
            home.mkdir()

    def types(self, machine: str, code: str) -> str:
        """What is told on a machine, whose operator stands at home."""
        home = self.homes[machine]
        reader = Reader(home, HOME=str(home), XDG_DATA_HOME="")
        return self.network.on(machine, reader.types, code)

    def leave(self) -> None:
        """Nothing runs any more."""
        for home in reversed(self.homes.values()):
            for folder in (home / "joined", home / CLUSTER):
                operate.down(folder)
        for home in self.homes.values():
            wait_for(lambda home=home: not processes_of(home))  # type: ignore[misc]


@pytest.fixture
def operators() -> Iterator[Operators]:
    if (reason := missing()) is not None:
        pytest.skip(reason)
    with (
        tempfile.TemporaryDirectory(prefix="pie-") as folder,
        Network(["head", "far", "desk"], "10.0.0") as network,
    ):
        operators = Operators(Path(folder), network)
        try:
            yield operators
        finally:
            operators.leave()


def test_one_machine(operators: Operators) -> None:
    install, lines = shown("pie-py[cluster]").split("\n", 1)
    assert install == "pip install 'pie-py[cluster]'"
    told = operators.types("head", lines)
    assert told.startswith("tcp://127.0.0.1:7743\n")
    rows = re.findall(r"^(n\d) +\d+ +(\S+)", told, flags=re.MULTILINE)
    assert rows == [("n1", "ready"), ("n2", "ready"), ("n3", "ready")]


def test_several_machines(operators: Operators) -> None:
    """Up, a user's key, a machine that joins with nothing but the token, and the user at a desk."""
    lines = shown("tcp://10.0.0.1:7743 --token")
    head, far, desk = re.split(r"^#.*\n", lines, flags=re.MULTILINE)
    homes = operators.homes
    (homes["head"] / "cluster.toml").write_text(shown('endpoint = "tcp://10.0.0.1:7743"'))
    operators.types("head", head)
    shutil.copy(homes["head"] / CLUSTER / "token.json", homes["far"])
    operators.types("far", far)
    shutil.copy(homes["head"] / "ada.key.json", homes["desk"])
    operators.types("desk", desk)
    run = "pie-py run text_completion --prompt Hello --max-tokens 4"
    assert operators.types("desk", f"{run} --endpoint tcp://10.0.0.1:7743 --key ada.key.json")

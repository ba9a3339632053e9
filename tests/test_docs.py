"""What the architecture page says of the source is true: every folder is named, every file is
there.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
PACKAGES = (
    "pie_py",
    "control/pie_control",
    "inference/pie_inference",
    "gateway/pie_gateway",
    "cluster/pie_cluster",
)
CODE = (
    "pie_py",
    "control",
    "inference",
    "gateway",
    "cluster",
    "sdk",
    "benchmarks",
    "codegen",
    "tests",
    "examples",
    "inferlets",
)


def tracked(*folders: str) -> list[str]:
    listing = subprocess.run(
        ["git", "ls-files", *folders], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return listing.stdout.splitlines()


@pytest.mark.parametrize("package", PACKAGES)
def test_every_folder_is_named(package: str) -> None:
    files = [file.removeprefix(package + "/") for file in tracked(package)]
    folders = {file.split("/")[0] for file in files if "/" in file}
    assert folders, package
    assert not {folder for folder in folders if f"`{folder}/`" not in PAGE}


@pytest.mark.parametrize("page", ["architecture", "scheduling"])
def test_every_file_that_is_named_is_there(page: str) -> None:
    text = (ROOT / f"docs/{page}.md").read_text(encoding="utf-8")
    files = tracked(*CODE)
    named = set(re.findall(r"`([a-z_/]*\w+\.(?:py|rs|wit))`", text))
    assert len(named) > 2
    assert not {
        name for name in named if not any(f"/{file}".endswith(f"/{name}") for file in files)
    }


def test_every_path_in_a_document_is_there() -> None:
    files = tracked(*CODE, "docs")
    wrong = {
        (page, path)
        for page in tracked("*.md")
        for path in re.findall(r"`(\w+/[\w/]*\w+\.(?:py|rs|wit))`", (ROOT / page).read_text())
        if not any(f"/{file}".endswith(f"/{path}") for file in files)
    }
    assert not wrong


def test_every_link_leads_somewhere() -> None:
    wrong = {
        (page, target)
        for page in tracked("*.md")
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", (ROOT / page).read_text())
        if not (ROOT / page).parent.joinpath(target).exists()
    }
    assert not wrong


def test_every_function_that_is_named_is_there() -> None:
    sources = "\n".join(
        (ROOT / file).read_text() for file in tracked(*CODE) if file.endswith(".py")
    )
    named = set(re.findall(r"`(?:[A-Z]\w+)\.([a-z_]\w+)`", PAGE))
    assert len(named) > 5
    assert not {name for name in named if f"def {name}(" not in sources}

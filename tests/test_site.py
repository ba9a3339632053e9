"""The documentation site is built without a warning, and needs nothing from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from support.doc_scripts import DOCS, load_script


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, DOCS / "make_site.py", folder],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


class _Page(HTMLParser):
    """What a browser fetches to show a page, its links, and what links may name in it."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.found: set[str] = set()
        self.links: set[str] = set()
        self.names: set[str] = set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.names |= {given.get("id") or "", given.get("name") or ""}
        self.links |= {given.get("href") or "", given.get("src") or ""}
        if tag in ("script", "img", "iframe"):
            self.found.add(given.get("src") or "")
        elif tag == "link" and given.get("rel") in ("stylesheet", "icon", "preload"):
            self.found.add(given.get("href") or "")


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 60
    for page in pages:
        outside = {url for url in _Page(page).found if re.match(r"(https?:)?//", url)}
        assert not outside, page
    for style in site.rglob("*.css"):
        assert not re.findall(r"url\([\"']?(?:https?:)?//", style.read_text(encoding="utf-8")), (
            style
        )


def test_every_local_link_leads_somewhere(site: Path) -> None:
    pages = {page: _Page(page) for page in site.rglob("*.html")}
    dead = set()
    for page, read in pages.items():
        for link in read.links:
            url = urlsplit(link)
            if url.scheme or url.netloc:
                continue
            start = site if url.path.startswith("/") else page.parent
            there = Path(os.path.normpath(start / unquote(url.path).lstrip("/")))
            there = page if not url.path else there / "index.html" if there.is_dir() else there
            named = there not in pages or unquote(url.fragment) in pages[there].names | {""}
            if not (there.is_relative_to(site) and there.is_file() and named):
                dead.add(f"{page.relative_to(site)}: {link}")
    assert not dead


def test_what_the_reference_and_the_cookbook_have(site: Path) -> None:
    sdk = (site / "reference/inferlet.html").read_text(encoding="utf-8")
    for name in ("Context.fork", "Generator.collect_text", "Grammar.json_schema", "session.drain"):
        assert f".{name}" in sdk, name
    client = (site / "reference/client.html").read_text(encoding="utf-8")
    for name in ("Client.launch", "Client.stream", "Instance.receive", "sync.Client"):
        assert f".{name}" in client, name
    fields = (site / "configuration.html").read_text(encoding="utf-8")
    assert "waiting_bytes" in fields
    assert "values not yet taken" in fields
    commands = (site / "cli.html").read_text(encoding="utf-8")
    assert "pie-py cluster drain" in commands
    assert "--data-folder" in commands
    functions = (site / "api.html").read_text(encoding="utf-8")
    assert "next-tokens" in functions
    tables = {
        "device-programs.html": ["nucleus"],
        "protocol.html": ["upload-chunk", "program-bytes"],
        "cookbook/index.html": ["monte_carlo_tree_search"],
        "benchmarks.html": ["hot-path"],
    }
    for page, names in tables.items():
        text = (site / page).read_text(encoding="utf-8")
        assert all(name in text for name in names), page
    records = (site / "records.html").read_text(encoding="utf-8")
    assert "vllm-compiled" in records
    technique = (site / "cookbook/tree_of_thought.html").read_text(encoding="utf-8")
    assert "What to expect" in technique
    assert "async" in technique


def test_the_pictures_are_what_their_source_draws() -> None:
    drawn = load_script("make_pictures").render()
    kept = {file.name: file.read_text(encoding="utf-8") for file in (DOCS / "pictures").iterdir()}
    assert kept == drawn, "run `python docs/make_pictures.py`"


def test_lines_of_programs_are_those_of_code() -> None:
    library = load_script("make_library")
    source = '"""Doc."""\n\n# note\ndef f():\n    """More\n    of it."""\n    return """a\n\nb"""\n'
    assert library.python_lines(source) == 3
    assert library.rust_lines("//! doc\nfn f() {\n\n    // note\n}\n") == 2

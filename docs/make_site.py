"""Builds the documentation site, with what is in it from other places.

    python docs/make_site.py [FOLDER]        # then: python -m http.server -d FOLDER/site

The pages of `docs/`, a page per inferlet of the library, the reference of the SDK and of the client
from their docstrings, the contract's functions, the commands from their help, the benchmarks'
records, CONTRIBUTING and CHANGELOG are put together in FOLDER (`target/site`), with the tables that
are made of the code, and Zensical makes pages of them (`pip install -e .[docs]`). A warning, such
as a link that leads nowhere, ends it with status 1.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import make_library
import make_results

from codegen import ensure
from codegen import pages as of_the_code

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
OF_SDK = (
    "inferlet.model", "inferlet.context", "inferlet.generation", "inferlet.sample",
    "inferlet.grammar", "inferlet.branches", "inferlet.session", "inferlet.http",
    "inferlet.mcp", "inferlet.messaging", "inferlet.store", "inferlet.runtime", "inferlet.tools",
    "inferlet.watermark", "inferlet.errors",
)  # fmt: skip
OF_CLIENT = (
    "pie_py.client.client", "pie_py.client.instance", "pie_py.client.sync",
    "pie_py.client.functions", "pie_py.client.errors", "pie_py.testing.plugin",
)  # fmt: skip

# What stands in a page where it says `<!-- table: NAME -->`.
TABLES = {
    "benchmarks": make_results.benchmarks,
    "fields": of_the_code.fields,
    "methods": of_the_code.methods_of_servers,
    "methods of a gateway": of_the_code.methods_of_gateways,
    "operations": of_the_code.operations,
    "programs": make_library.table,
}

# Pages of the site that lie elsewhere.
_OF_THE_ROOT = {"../CONTRIBUTING.md": "contributing.md", "../CHANGELOG.md": "changelog.md"}


def main() -> int:
    """Puts the sources together and builds the site; returns the exit status."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "target" / "site").absolute()
    if importlib.util.find_spec("zensical") is None:
        raise SystemExit(f"the site needs Zensical: {sys.executable} -m pip install -e '.[docs]'")
    assemble(folder)
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    return subprocess.run(command, cwd=folder, check=False).returncode


def assemble(folder: Path) -> None:
    """Writes the sources of the site, and its configuration, into a folder."""
    ensure()  # docstrings of generated files
    pages = folder / "pages"
    shutil.rmtree(pages, ignore_errors=True)
    ignored = shutil.ignore_patterns("*.py", "*.json", "site.toml", "__pycache__")
    shutil.copytree(DOCS, pages, ignore=ignored)
    techniques = dict(cookbook())
    reference = {
        "reference/inferlet.md": _docstrings("The Python SDK, function by function", OF_SDK),
        "reference/client.md": _docstrings("The client and its test plugin", OF_CLIENT),
        "cli.md": command_line(),
        "api.md": of_the_code.render_api(),
        "records.md": make_results.records(),
    }
    for name, text in {**techniques, **reference, **dict(_of_the_root())}.items():
        path = pages / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    for path in pages.rglob("*.md"):
        path.write_text(_with_tables(path.read_text(encoding="utf-8")), encoding="utf-8")
    for path in pages.glob("*.md"):
        path.write_text(_within_site(path.read_text(encoding="utf-8")), encoding="utf-8")
    with (pages / "configuration.md").open("a", encoding="utf-8") as page:
        page.write(f"\n## pie.toml\n```toml\n{(DOCS / 'pie.toml').read_text('utf-8')}```\n")
    text = (DOCS / "site.toml").read_text(encoding="utf-8").replace("ROOT", str(ROOT))
    text = _with_list(text, "COOKBOOK", sorted(techniques, key=lambda name: "/index" not in name))
    text = _with_list(text, "SDKS", sorted(page.name for page in DOCS.glob("*-sdk.md")))
    (folder / "zensical.toml").write_text(text, encoding="utf-8")
    wanted = set(named(tomllib.loads(text)))
    there = {str(page.relative_to(pages)) for page in pages.rglob("*.md")}
    if wanted != there:
        both = ", ".join(sorted(wanted ^ there))
        raise SystemExit(f"docs/site.toml names a page that is not there, or not one: {both}")


def _with_tables(text: str) -> str:
    return re.sub(r"(?m)^<!-- table: (.+) -->$", lambda mark: TABLES[mark[1]](), text)


def _within_site(text: str) -> str:
    """A page whose links to files of the repository lead to pages, or are their names."""
    for place, page in (("../inferlets/README.md", "cookbook/index.md"), *_OF_THE_ROOT.items()):
        text = text.replace(f"]({place})", f"]({page})")
    text = re.sub(r"\]\(\.\./inferlets/(\w+)\)", r"](cookbook/\1.md)", text)
    return re.sub(r"\[([^]]*)\]\(\.\./([^)]*)\)", r"\1 `\2`", text)


def _with_list(text: str, mark: str, names: list[str]) -> str:
    return text.replace(f'"{mark}",', "".join(f'"{name}", ' for name in names).rstrip())


def named(config: Any) -> Iterator[str]:
    """All pages that the navigation of a configuration names."""
    match config:
        case str():
            yield config
        case dict():
            for value in config["project"]["nav"] if "project" in config else config.values():
                yield from named(value)
        case list():
            for value in config:
                yield from named(value)


def cookbook() -> Iterator[tuple[str, str]]:
    """A page per inferlet of the library: its README and its program."""
    index = (ROOT / "inferlets/README.md").read_text(encoding="utf-8")
    index = index.replace("# The inferlet library", "# Cookbook", 1)
    yield "cookbook/index.md", re.sub(r"\]\((\w+)/README\.md\)", r"](\1.md)", index)
    for readme in sorted((ROOT / "inferlets").glob("*/README.md")):
        program = readme.parent / "main.py"
        text = readme.read_text(encoding="utf-8").rstrip()
        if program.is_file():
            source = program.read_text(encoding="utf-8").rstrip()
            text += f"\n\n## The program\n```python\n{source}\n```"
        yield f"cookbook/{readme.parent.name}.md", f"{text}\n"


def _docstrings(title: str, modules: tuple[str, ...]) -> str:
    return f"# {title}\n\n" + "\n".join(f"::: {module}\n" for module in modules)


def _of_the_root() -> Iterator[tuple[str, str]]:
    for place, page in _OF_THE_ROOT.items():
        text = (DOCS / place).read_text(encoding="utf-8")
        yield page, text.replace("](docs/", "](")


def command_line() -> str:
    """The help of every command."""
    from pie_py.cli import main as pie_py

    parts = [
        "# The command line\n\nAnswers go to standard output and nothing else does. Exit status: 0;"
        " 1 if an inferlet or the command failed; 2 for wrong usage, also of an inferlet (its error"
        " begins with `usage:`); 130 after Ctrl-C. Listings take `--json`.\n"
    ]
    for path, text in helps(pie_py, "pie-py", None):
        parts.append(f"{'#' * len(path.split())} {path}\n```\n{text}\n```\n")
    return "\n".join(parts)


def helps(
    command: click.Command, path: str, parent: click.Context | None
) -> Iterator[tuple[str, str]]:
    """Name and help of a command and of all below it."""
    context = click.Context(command, parent, path.split()[-1], **command.context_settings)
    context.terminal_width = 100
    if parent is not None:
        yield path, "\n".join(line.rstrip() for line in command.get_help(context).splitlines())
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from helps(below, f"{path} {name}", context)


if __name__ == "__main__":
    sys.exit(main())

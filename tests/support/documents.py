"""The documents' blocks of code, and a reader who types them into a shell.

A fenced block has the kind that its fence names; an indented one is of a shell. A block whose first
line is a remark with a file's name (`# surer.py`, `// hello/src/lib.rs`) is that file.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_FENCE = re.compile(r"( *)```(\w*)$")
_NAMED = re.compile(r"(?:#|//) ([\w/-]+\.\w+)\n")
_STAYS = re.compile(r"pie-py serve\b|--watch\b")  # until Ctrl-C


# Of a server whose model answers at once.
_AT_ONCE = {
    "PIE_PY_MODELS": json.dumps(
        [{"source": str(ROOT / "inference/pie_inference/embedded/pie-tiny")}]
    ),
    "PIE_PY_WORKER_MODULE": "benchmarks.instant_worker",
}


@dataclass(frozen=True)
class Block:
    """A block of code of a page."""

    page: str  # its path in the repository
    line: int  # of its first line, from 1
    kind: str  # "sh", "python", ...; "" if the fence names none
    code: str

    @property
    def file(self) -> str | None:
        """The name of the file that it is."""
        named = _NAMED.match(self.code)
        return None if named is None else named[1]

    def __str__(self) -> str:
        """For messages: where it stands, and its first line."""
        return f"{self.page}:{self.line} [{self.kind}] {self.code.partition(chr(10))[0][:60]}"


def pages() -> list[str]:
    """All documents, by their paths in the repository."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "*.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [page for page in listed.stdout.splitlines() if (ROOT / page).is_file()]


def blocks(page: str) -> Iterator[Block]:
    """A page's blocks of code, from top to bottom."""
    lines = [*(ROOT / page).read_text(encoding="utf-8").splitlines(), ""]
    at = 0
    while at < len(lines):
        fence = _FENCE.match(lines[at])
        begin = at + (fence is not None)
        end = begin
        if fence:
            while lines[end].strip() != "```":
                end += 1
            at = end + 1
        elif lines[at].startswith("    ") and re.match(r"#|\s*$", lines[at - 1]):
            while lines[end].startswith("    "):
                end += 1
            at = end
        else:
            at += 1
            continue
        code = textwrap.dedent("\n".join(lines[begin:end])) + "\n"
        yield Block(page, begin + 1, fence[2] if fence else "sh", code)


class Reader:
    """Types what a page says into bash, in a folder, with this installation's commands."""

    def __init__(self, folder: Path, **environment: str) -> None:
        """Takes an empty folder; variables come in addition to this process's."""
        self.folder = folder
        bin_folder = str(Path(sys.executable).parent)
        self.environment = {
            **os.environ,
            "PATH": os.pathsep.join([bin_folder, os.environ["PATH"]]),
            "PYTEST_ADDOPTS": "-p no:cacheprovider",
            **environment,
        }

    def writes(self, name: str, text: str) -> None:
        """Makes a file in the folder."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def types(self, code: str) -> str:
        """Runs lines; one that stays is ended by Ctrl-C as soon as it answers.

        Servers listen in the reader's folder, and their model answers at once.

        Returns:
            Standard output of all.

        Raises:
            AssertionError: if one fails; with what it has told.
        """
        told, before = "", ""
        for line in code.replace("\\\n", " ").splitlines():
            if not _STAYS.search(line.partition(" #")[0]):
                before += f"{line}\n"
                continue
            told += self._runs(before) + self._until_it_tells(line)
            before = ""
        return told + self._runs(before)

    def _runs(self, script: str) -> str:
        if not script.strip():
            return ""
        done = subprocess.run(
            ["bash", "-euc", script],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=250,
            check=False,
        )
        assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def _until_it_tells(self, line: str) -> str:
        serves = "pie-py serve" in line
        place = f" --no-http --endpoint ipc://{self.folder}/s" if serves else ""
        process = subprocess.Popen(
            ["bash", "-euc", f"exec {line.partition(' #')[0]}{place}"],
            cwd=self.folder,
            env={**self.environment, **_AT_ONCE},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if serves else None,
            text=True,
        )
        try:
            assert process.stdout is not None
            told = ""
            while "ready at" not in told if serves else not told:
                more = process.stdout.readline()
                assert more, f"{line}\n{told}"
                told += more
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == (0 if serves else 130), line
            return "" if serves else told
        finally:
            process.kill()
            process.wait()


def without_the_server(code: str) -> str:
    """Lines of which those that start a server of their own are not told of ours."""
    alone = r"^(?=pie-py run .*--(?:record|model|keep-server|allow-http) )"
    return re.sub(alone, "env -u PIE_PY_ENDPOINT ", code, flags=re.MULTILINE)

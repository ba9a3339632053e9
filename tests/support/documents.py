"""A reader of the documents, who types what they say into a shell."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from support.shown_blocks import ROOT

_STAYS = re.compile(r"pie-py serve\b|--watch\b")  # until Ctrl-C


# Of a server whose model answers at once.
_AT_ONCE = {
    "PIE_PY_MODELS": json.dumps(
        [{"source": str(ROOT / "inference/pie_inference/embedded/pie-tiny")}]
    ),
    "PIE_PY_WORKER_MODULE": "benchmarks.instant_worker",
}

# What the documents' commands call `person.json`.
PERSON = (
    '{"type": "object", "properties": {"name": {"enum": ["Ann", "Bob"]}}, "required": ["name"]}'
)


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

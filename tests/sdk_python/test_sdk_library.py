"""The standard library in an inferlet: it works, or says why not. Nothing traps."""

# ruff: noqa: E501 - programs in strings

from __future__ import annotations

import textwrap

import pytest
from support.sdk_rig import Rig


def run(rig: Rig, body: str) -> tuple[bool, str]:
    outcome = rig.run("def main(args):\n" + textwrap.indent(textwrap.dedent(body), "    "))
    assert not outcome.text.startswith("trap"), outcome.text
    return outcome.ok, outcome.text


DEEP = [
    "import json; json.loads('[' * 100_000)",
    "import json; json.loads('{\"a\":' * 100_000)",
    "import re; re.compile('(' * 50_000 + ')' * 50_000)",
    "compile('-' * 3000 + '1', 'x', 'eval')",
    "def f(n): return f(n + 1)\nf(0)",
    "def f(n): return sorted([n], key=f)\nf(0)",
]

WORKING = """
import time; return 1e9 < time.time() and time.perf_counter_ns() > 0 and time.monotonic() > 0
import time; a = time.monotonic(); time.sleep(0.01); return time.monotonic() - a >= 0.01
import time; return time.gmtime(0)[:3] == (1970, 1, 1) and time.strftime("%Y") > "2000" and bool(time.ctime())
import datetime as d; return d.datetime.now().year > 2000 and d.datetime.now(d.timezone.utc).isoformat() > "2"
import datetime as d; return d.datetime.strptime("2020-01-02", "%Y-%m-%d").strftime("%A %j") == "Thursday 002"
import email.utils; return email.utils.localtime().year > 2000
import os; return not os.path.exists("/tmp") and os.getcwd() == "/" and os.getpid() == 1 and os.times()[4] > 0
import os; os.environ["A"] = "b"; return os.environ["A"] == "b" and list(os.walk("/")) == []
import pathlib; p = pathlib.Path("a/b.c"); return p.suffix == ".c" and not p.exists()
import shutil; return shutil.get_terminal_size().columns == 80
import glob; return glob.glob("*") == []
import threading; l = threading.Lock(); l.acquire(); return l.acquire(timeout=0.1) is False
import threading; r = threading.RLock(); r.acquire(); return r.acquire() and threading.Event().wait(0.01) is False
import queue; q = queue.Queue(); q.put(1); return q.get() == 1 and q.empty()
import queue; q = queue.SimpleQueue(); q.put(1); return q.get() == 1
import asyncio; return asyncio.run(asyncio.sleep(0.01, 7)) == 7
x = 3; return eval("x + 1") == 4
d = {}; exec("y = x * 2", {"x": 4}, d); return d["y"] == 8
import ast; return ast.literal_eval("[1, {'a': 2}]") == [1, {"a": 2}]
import warnings; warnings.warn("careful"); return True
import decimal, fractions; return str(decimal.Decimal("1.1") ** 2) == "1.21" and fractions.Fraction(1, 3) * 3 == 1
import hashlib, hmac; return len(hashlib.sha3_256(b"").digest()) == 32 and len(hmac.new(b"k", b"", "md5").digest()) == 16
import zlib, gzip; return zlib.decompress(zlib.compress(b"ab")) == gzip.decompress(gzip.compress(b"ab"))
import io, zipfile; b = io.BytesIO(); z = zipfile.ZipFile(b, "w"); z.writestr("a", "b"); z.close(); return True
import pickle, copy; x = {"a": [1, (2,)]}; return pickle.loads(pickle.dumps(x)) == x == copy.deepcopy(x)
import xml.etree.ElementTree as e; return e.fromstring("<a><b>1</b></a>").find("b").text == "1"
import tomllib, csv, html, base64, struct; return tomllib.loads("a=1") == {"a": 1} and html.escape("<") == "&lt;"
import uuid; return uuid.uuid1().version == 1 and uuid.uuid7().version == 7 and uuid.getnode() > 0
import platform; return platform.python_version() >= "3.12" and bool(platform.platform())
import timeit; return timeit.timeit("1+1", number=10) >= 0
import sched; s = sched.scheduler(); s.enter(0.01, 1, lambda: None); s.run(); return True
import unittest.mock as m; return m.Mock(return_value=3)() == 3
import gc, weakref; return gc.collect() >= 0
import importlib.util; return importlib.util.find_spec("numpy") is None
import logging; logging.getLogger("a").error("e"); return True
import re; return bool(re.match("(a|b)*c", "ab" * 10000 + "c"))
return "x".encode("cp1252") == b"x" and "ü".encode("idna") and b"\\xe9".decode("latin-1") == "é"
import mimetypes; return mimetypes.guess_type("a.png")[0] == "image/png"
import linecache; return linecache.getline("nothing.py", 1) == ""
class A:
    def __del__(self): 1 / 0
a = A(); del a; return True
""".strip()


def _statements(text: str) -> list[str]:
    """Lines, joined with the indented ones that follow, and the one after those."""
    found: list[str] = []
    for line in text.splitlines():
        if line.startswith(" ") or (found and found[-1].splitlines()[-1].startswith(" ")):
            found[-1] += "\n" + line
        else:
            found.append(line)
    joined: list[str] = []
    for item in found:
        if joined and joined[-1].startswith("class") and "return" not in joined[-1]:
            joined[-1] += "\n" + item
        else:
            joined.append(item)
    return joined


@pytest.mark.parametrize("body", _statements(WORKING))
def test_works(rig: Rig, body: str) -> None:
    assert run(rig, body) == (True, "true")


FILES = "an inferlet has no file system"
NETWORK = "an inferlet has no network"
THREADS = "an inferlet has one thread"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("open('x')", FILES),
        ("import io; io.FileIO('x')", FILES),
        ("import os; os.listdir('.')", FILES),
        ("import os; os.read(0, 1)", FILES),
        ("import pathlib; pathlib.Path('x').write_text('y')", FILES),
        ("import tempfile; tempfile.mkdtemp()", "No usable temporary directory"),
        ("import logging; logging.FileHandler('x')", FILES),
        ("import socket; socket.socket()", NETWORK),
        ("import urllib.request; urllib.request.urlopen('http://a')", NETWORK),
        ("import select; select.select([], [], [], 0.1)", NETWORK),
        ("import selectors; selectors.DefaultSelector().select(0.1)", NETWORK),
        ("import threading; threading.Thread(target=print).start()", THREADS),
        ("import threading; l = threading.Lock(); l.acquire(); l.acquire()", THREADS),
        ("import queue; queue.Queue().get()", THREADS),
        ("import concurrent.futures as c; c.ThreadPoolExecutor().submit(print)", THREADS),
        ("import subprocess; subprocess.run(['ls'])", "one thread and one process"),
        ("import signal; signal.signal(2, print)", "an inferlet gets no signals"),
        ("input()", "session.receive()"),
        ("import sys; sys.stdin.read()", "session.receive()"),
        ("import sys; [*sys.stdin]", "session.receive()"),
        ("breakpoint()", "there is no debugger"),
        ("import numpy", "`pie-py build FILE.py --package NAME`"),
        (
            "import importlib; importlib.import_module('requests.api')",
            "not part of the Python runtime",
        ),
        ("from json import nothing", "cannot import name"),
        ("import faulthandler", "needs an operating system"),
        ("import sqlite3", "needs an operating system"),
        ("import os; os.abort()", "raise an exception instead"),
        ("import os; os._exit(3)", "status 3"),
        ("import sys; sys.setrecursionlimit(10**6)", "has room for 10000"),
        ("import gc; gc.set_debug(1)", "not available"),
        ("exec('x = (')", "SyntaxError: '(' was never closed"),
        ("exec('return 3')", "'return' outside function"),
        ("eval('1 +')", "SyntaxError: invalid syntax"),
        ("eval('(yield)')", "SyntaxError: 'yield' outside function"),
        ("import ast; ast.parse('def f(:\\n pass')", "SyntaxError: invalid syntax"),
        ("compile('a = \\'', 'gone.py', 'exec')", 'File "gone.py", line 1'),
        (
            "import tokenize, io; [*tokenize.generate_tokens(io.StringIO('f(\\n').readline)]",
            "unexpected EOF",
        ),
        ("import symtable; symtable.symtable('x = (', 'f', 'exec')", "SyntaxError"),
        ("import zoneinfo; zoneinfo.ZoneInfo('Europe/Paris')", "ZoneInfoNotFoundError"),
        ("import time; time.sleep(-1)", "non-negative"),
        ("eval('(' * 1000 + ')' * 1000)", "nested too deeply"),
        *((f"{each}", "RecursionError") for each in DEEP),
        ("import json; json.loads('[' * 3000)", "JSONDecodeError"),
        ("class A:\n  def __repr__(self): return repr(self)\nrepr(A())", "RecursionError"),
        ("from inferlet import raw; raw.sleep(-1)", "ValueError"),
        ("from inferlet import raw; raw.send(5)", "TypeError"),
        ("from inferlet import raw; raw.wait([-1])", "OverflowError"),
        ("from inferlet import raw; raw.wait('ab')", "TypeError"),
        ("from inferlet import raw; raw.send_blob('x')", "TypeError"),
        ("from inferlet import raw; raw.send('\\ud800')", "UnicodeEncodeError"),
        ("from inferlet import raw; raw.launch('x', ['\\ud800'])", "UnicodeEncodeError"),
        ("from inferlet import raw; raw.take(77)", "invalid-handle"),
    ],
)
def test_refuses_clearly(rig: Rig, body: str, reason: str) -> None:
    ok, text = run(rig, body)
    assert not ok
    assert reason in text


def test_what_is_too_deep_can_be_caught_and_the_program_goes_on(rig: Rig) -> None:
    body = "import json\ntry:\n    json.loads('[' * 100_000)\nexcept RecursionError:\n    return 7"
    assert run(rig, body) == (True, "7")


def test_numbers_that_json_has_not_are_null(rig: Rig) -> None:
    body = "return {'a': float('nan'), 'b': [1e999, -1e999, 'NaN\\u2028', None]}"
    assert run(rig, body) == (True, '{"a": null, "b": [null, null, "NaN\\u2028", null]}')
    body = "from inferlet import session; session.send([float('inf')]); return 'sent'"
    assert run(rig, body) == (True, "sent")


def test_a_program_may_begin_with_a_mark_of_byte_order(rig: Rig) -> None:
    outcome = rig.run("\ufeff# bom\nasync def main():\n    return 'böm'\n")
    assert (outcome.ok, outcome.text) == (True, "böm")


def test_a_missing_module_can_be_caught(rig: Rig) -> None:
    assert run(rig, "try:\n    import numpy\nexcept ImportError:\n    return 'without'") == (
        True,
        "without",
    )

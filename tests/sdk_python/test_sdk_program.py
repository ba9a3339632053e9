"""How a source file becomes a result: `main` in its forms, errors, arguments, the log."""

# ruff: noqa: E501 - programs in strings

from __future__ import annotations

import json

import pytest
from support.sdk_rig import Rig

from pie_py.build.modules import read_modules
from pie_py.config.shipped_files import shipped_folder
from pie_py.wire.modules import pack


@pytest.mark.parametrize(
    ("source", "result"),
    [
        ("async def main(args): return ' '.join(args)", "a=1 --b 2 c=x"),
        ("def main(args): return args", '["a=1", "--b", "2", "c=x"]'),
        ("def main(): return None", ""),
        ("async def main(): return {'é': 1}", '{"é": 1}'),
        ("async def main(input): return input", '{"a": 1, "b": 2, "c": "x"}'),
        ("import sys\ndef main(): return sys.argv", '["program.py", "a=1", "--b", "2", "c=x"]'),
        ("import sys\ndef main(): sys.exit()", ""),
        ("def main(): return __name__ == '__main__'", "false"),
        ("import functools\nmain = functools.partial(lambda x, args: x, 7)", "7"),
        ("def f(x: int): ...\ndef main(): return f.__annotations__['x'] is int", "true"),
        ("def main(): return '\\ud800'", "\\ud800"),
    ],
)
def test_results(rig: Rig, source: str, result: str) -> None:
    outcome = rig.run(source, "a=1", "--b", "2", "c=x")
    assert (outcome.ok, outcome.text) == (True, result)


@pytest.mark.parametrize(
    ("value", "json_text"),
    [
        ("Order('hat', {Size.LARGE})", {"item": "hat", "sizes": ["large"]}),
        ("[{'o': Order('ä', frozenset())}]", [{"o": {"item": "ä", "sizes": []}}]),
        ("Point(1, b'x')", [1, "eA=="]),
        ("[Struct(), Model()]", [{"a": [1]}, {"at": "2026-01-02"}]),
        ("[datetime(2026, 1, 2, 3), date(2026, 1, 2), timedelta(minutes=1)]", ["2026-01-02T03:00:00", "2026-01-02", 60.0]),
        ("[Decimal('1.50'), UUID(int=1), Path('a/b')]", ["1.50", "00000000-0000-0000-0000-000000000001", "a/b"]),
        ("ChainMap({'a': 1})", {"a": 1}),
        ("[Size.LARGE, '\\ud800']", ["large", "\ud800"]),
    ],
)  # fmt: skip
def test_objects_are_results_and_messages(rig: Rig, value: str, json_text: object) -> None:
    source = f"""
from collections import ChainMap
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import NamedTuple
from uuid import UUID
from inferlet import session

class Size(Enum):
    LARGE = "large"

@dataclass(slots=True)
class Order:
    item: str
    sizes: set

class Point(NamedTuple):
    x: int
    y: bytes

class Struct:
    __struct_fields__ = ("a",)
    a = (1,)

class Model:
    def model_dump(self):
        return {{"at": date(2026, 1, 2)}}

async def main():
    value = {value}
    session.send([value])
    return [value]
"""
    outcome = rig.run(source)
    assert outcome.ok, outcome.text
    assert json.loads(outcome.text) == [json_text]
    assert outcome.sent == [f"{outcome.text}\n"]


def test_what_the_image_holds_is_immortal(rig: Rig) -> None:
    outcome = rig.run(
        """
import argparse, inspect, json, sys
from inferlet import Context, Model

def main():
    held = [json, json.loads, json.loads.__code__, json.loads.__code__.co_consts, json.__dict__,
            Context, Context.__mro__, Model, argparse.ArgumentParser, sys.modules]
    mine = [main, main.__code__, held, Context.__new__(Context)]
    return [[sys._is_immortal(one) for one in group] for group in (held, mine)]
"""
    )
    assert outcome.ok, outcome.text
    assert json.loads(outcome.text) == [[True] * 10, [False] * 4]


@pytest.mark.parametrize(
    ("source", "end"),
    [
        (
            "x = 1",
            "program.py has no function `main`; write `async def main(args: list[str]) -> str:`",
        ),
        ("def main(:", "SyntaxError: invalid syntax"),
        ("def main(): pass\nreturn 1", "SyntaxError: 'return' outside function"),
        ("def main(): return [object()]", "Object of type object is not JSON serializable"),
        ("import sys\ndef main(): sys.exit('bad luck')", "bad luck"),
        ("import sys\ndef main(): sys.exit(3)", "SystemExit: the program exited with status 3"),
        ("def main(): raise KeyboardInterrupt", "KeyboardInterrupt"),
        (
            "def main(): return [0] * (1 << 30)",
            "in main\nMemoryError: the inferlet's memory is used up, or its input is nested too deeply",
        ),
        (
            "def f(n): f(n + 1)\ndef main(): f(0)",
            "RecursionError: maximum recursion depth exceeded",
        ),
        ("x\0", "source code string cannot contain null bytes (program.py)"),
    ],
)
def test_failures(rig: Rig, source: str, end: str) -> None:
    outcome = rig.run(source)
    assert not outcome.ok
    assert outcome.text.endswith(end)


START = "from inferlet import *\nctx = Context(Model.load()).fill('a')\ngen = ctx.generate\n"
AWAIT = "write `await` before the call that gave the coroutine"


@pytest.mark.parametrize(
    ("line", "how"),
    [
        ("gen().collect_text().upper()", AWAIT),
        ("'x' + gen().collect_text()", AWAIT),
        ("len(gen().collect_text())", AWAIT),
        ("session.send({'a': gen().collect_text()})", AWAIT),
        ("ctx.append(gen().collect_tokens())", AWAIT),
        ("for piece in gen(): pass", "await generation.collect_text()"),
        ("await gen()", "await generation.collect_text()"),
        ("return gen()", "await generation.collect_text()"),
        ("for piece in gen().stream_text(): pass", "`async for`"),
        ("[key for key in store.keys()]", "`async for`"),
        ("return (n for n in range(3))", "`list(...)`"),
        ("await ctx.fork()", "leave `await` out"),
        ("await gather([gen().collect_text()])", "`gather(*calls)`"),
        ("await gather(gen().collect_text)", "`gather(f(1), f(2))`"),
        ("import asyncio; asyncio.run(gen().collect_text())", "`await` the call"),
        ("gen(temperature=1.0)", "`generate(Sampler(temperature=...))`"),
        ("ctx.model.tokenizer('a')", "`tokenizer.encode(text)`"),
        ("async for step in gen(): print(step.tokens)", "await step.execute()"),
        ("ctx.release(); await gen().collect_text()", "released?"),
        ("import os; os.environ['KEY']", "pass it as an argument"),
        ("import tempfile; tempfile.mkdtemp()", "no file system"),
        ("import subprocess; subprocess.run(['ls'])", "one thread and one process"),
        ("import os; os.system('ls')", "one thread and one process"),
        ("import sqlite3", "needs an operating system"),
        ("import helper", "lies beside the program"),
        ("ctx.append('a')", "a list of integers is wanted, not str"),
        ("ctx.model.tokenizer.decode(5)", "a list of integers is wanted, not int"),
        ("await ctx.verify('a')", "a list of integers is wanted, not str"),
        ("ctx.user({'role': 'user', 'content': 'a'})", "text is wanted, not dict"),
        ("Context(ctx.model, chat=[{'role': 'user'}])", "a dict is wanted"),
        ("session.send_blob('a')", "bytes are wanted, not str"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_how_it_is_mended(rig: Rig, line: str, how: str) -> None:
    outcome = rig.run(f"{START}\nasync def main():\n    {line}\n")
    assert not outcome.ok
    assert how in outcome.text.splitlines()[-1]


def test_traceback_shows_the_programs_own_frames(rig: Rig) -> None:
    source = "import json\n\ndef parse(text):\n    return json.loads(text)\n\nasync def main():\n    parse('[')\n"
    text = rig.run(source).text
    assert text.startswith("Traceback (most recent call last):")
    assert 'File "program.py", line 4, in parse\n    return json.loads(text)' in text
    assert "line 7, in main" in text
    assert "/python/" not in text
    assert "inferlet/" not in text


def test_chained_exceptions_and_groups_are_shown(rig: Rig) -> None:
    source = "def main():\n  try: 1/0\n  except Exception as e: raise ExceptionGroup('g', [KeyError(1)]) from e"
    text = rig.run(source).text
    assert "ZeroDivisionError" in text
    assert "KeyError: 1" in text


ARGPARSE = """
import argparse
def main(args):
    parser = argparse.ArgumentParser("tool")
    parser.add_argument("--count", type=int, required=True)
    return parser.parse_args(args).count
"""


def test_wrong_arguments_are_a_usage_error(rig: Rig) -> None:
    outcome = rig.run(ARGPARSE, "--count", "many")
    assert not outcome.ok
    assert outcome.text.startswith("usage: tool [-h] --count COUNT\n")
    assert outcome.text.endswith("tool: error: argument --count: invalid int value: 'many'")
    assert rig.run(ARGPARSE, "--count", "4").text == "4"


@pytest.mark.parametrize("arg", ["word", "--input=[1]", "--input={"])
def test_wrong_input_is_a_usage_error(rig: Rig, arg: str) -> None:
    outcome = rig.run("async def main(input): return input", arg)
    assert not outcome.ok
    assert outcome.text.startswith("usage: ")


def test_input_as_json(rig: Rig) -> None:
    outcome = rig.run(
        "async def main(input): return input", "--input", '{"a": [1]}', "--flag", "--x=y"
    )
    assert json.loads(outcome.text) == {"a": [1], "flag": True, "x": "y"}


def test_prints_go_to_the_log_line_by_line(rig: Rig) -> None:
    source = (
        "import sys, logging\n"
        "def main():\n"
        "    print('a', 1); print('b', end=''); print('c\\nd')\n"
        "    print('wrong', file=sys.stderr)\n"
        "    logging.warning('careful')\n"
        "    sys.stdout.buffer.write('é\\n'.encode()); print('\\udc41')\n"
        "    print('unfinished', end='')\n"
    )
    assert rig.run(source).log == [
        ("info", "a 1"),
        ("info", "bc"),
        ("info", "d"),
        ("error", "wrong"),
        ("error", "WARNING:root:careful"),
        ("info", "é"),
        ("info", "\\udc41"),
        ("info", "unfinished"),
    ]


def test_a_line_that_is_longer_than_a_text_may_be_is_cut(rig: Rig) -> None:
    source = (
        "from inferlet import runtime\n"
        "def main():\n"
        "    print('x' * 9_000_000, end=''); print('a' * 9_000_000); print('b')\n"
        "    runtime.log('c' * 9_000_000)\n"
    )
    outcome = rig.run(source)
    assert outcome.ok
    assert [text[:2] for _, text in outcome.log] == ["xx", "b", "cc"]


def test_instances_have_their_own_randomness(rig: Rig) -> None:
    source = (
        "import random, uuid, secrets, os\n"
        "def main(): return [random.random(), str(uuid.uuid4()), secrets.token_hex(4), random.Random().random()]"
    )
    first, second = (json.loads(o.text) for o in rig.run_all([(source, []), (source, [])]))
    assert all(a != b for a, b in zip(first, second, strict=True))
    assert rig.run("import random\ndef main(): random.seed(5); return random.random()").text == str(
        __import__("random").Random(5).random()
    )


def test_instances_share_nothing(rig: Rig) -> None:
    leave = "import json\ndef main(): json.mark = 1"
    look = "import json\ndef main(): return hasattr(json, 'mark')"
    rig.run(leave)
    assert rig.run(look).text == "false"


def test_session_of_text_bytes_and_json(rig: Rig) -> None:
    source = (
        "from inferlet import session\n"
        "async def main():\n"
        "    session.send(await session.receive()); session.send({'a': [1]})\n"
        "    session.send_blob(await session.receive_blob())\n"
    )
    outcome = rig.run(source, send=["hi", b"\0\xff"])
    assert outcome.sent == ["hi", '{"a": [1]}\n', b"\0\xff"]


def test_runtime_module(rig: Rig) -> None:
    source = (
        "from inferlet import runtime, Model\n"
        "async def main(args):\n"
        "    before = runtime.monotonic()\n"
        "    await runtime.sleep(0.01)\n"
        "    assert runtime.monotonic() - before >= 0.01 and runtime.now() > 1e9\n"
        "    assert len(runtime.random_bytes(70000)) == 70000\n"
        "    runtime.log('note', 'warning')\n"
        "    model = Model.load()\n"
        "    return [runtime.username(), runtime.models(), runtime.arguments() == args, model.page_size]\n"
    )
    outcome = rig.run(source, "x")
    assert json.loads(outcome.text) == ["tester", ["hash"], True, 8]
    assert outcome.log == [("warning", "note")]


def test_unknown_model(rig: Rig) -> None:
    source = (
        "from inferlet import Model, PieError\n"
        "def main():\n"
        "    try: Model.load('x')\n"
        "    except PieError as e: return [e.code, str(e)]\n"
    )
    code, text = json.loads(rig.run(source).text)
    assert code == "unknown-model"
    assert "served: hash" in text


# Code that the first instance has compiled

AGAIN = "import sys\ndef main(args):\n    raise ValueError(args[0])\n"


def test_later_instances_end_like_the_first(rig: Rig) -> None:
    texts = [rig.run(AGAIN, "x", name=name).text for name in ("one", "one", "two", "one")]
    assert texts[0] == texts[1] == texts[3]
    assert 'File "one.py", line 3, in main\n    raise ValueError(args[0])' in texts[0]
    assert texts[2] == texts[0].replace("one.py", "two.py")


def test_a_syntax_warning_is_logged_by_every_instance(rig: Rig) -> None:
    source = "def main(): return '\\d'\n"
    logs = [rig.run(source).log for _ in range(3)]
    assert logs[0] == logs[1] == logs[2]
    assert any("SyntaxWarning" in line and "program.py:1" in line for _, line in logs[0])


INTRUDER = """
from wit_world.imports import source
from inferlet._guest.modules import Program
async def main():
    evil, _ = Program.compiled("program.py", "def main(): return 'evil'")
    kept = evil.kept()
    source.read()  # to ask again makes nobody the runtime
    source.keep(kept)
"""


def test_no_program_keeps_code(rig: Rig) -> None:
    for _ in range(3):
        outcome = rig.run(INTRUDER)
        assert not outcome.ok
        assert "only the Python runtime keeps a program's code" in outcome.text
    # Nor one whose own code the runtime did not keep, because of a warning.
    warned = INTRUDER + "w = '\\d'\n"
    for _ in range(2):
        outcome = rig.run(warned)
        assert "only the Python runtime keeps a program's code" in outcome.text


def packed(main: str, helper: str, more: dict[str, str] | None = None) -> str:
    """A program of several modules."""
    modules = {"main.py": main, "helper.py": helper, **(more or {})}
    return pack({path: source.encode() for path, source in modules.items()}).decode()


def test_modules_import_each_other(rig: Rig) -> None:
    program = packed(
        main="import helper, place.deep.leaf\n"
        "from pack import part\n"
        "def main(): return [helper.f(), part.up, place.deep.leaf.x, helper.__file__, __file__]",
        helper="import sys\nfrom pack.part import up\ndef f(): return [__name__, sys.argv[0]]",
        more={
            "pack/__init__.py": "",
            "pack/part.py": "from . import other\nfrom .other import y\nup = other.y + y",
            "pack/other.py": "y = 1",
            "place/deep/leaf.py": "x = 'leaf'",
        },
    )
    for _ in range(3):  # compiled, then restored
        outcome = rig.run(program, name="prog")
        assert outcome.ok, outcome.text
        assert json.loads(outcome.text) == [
            *(["helper", "prog/main.py"], 2, "leaf", "prog/helper.py", "prog/main.py")
        ]


def test_a_traceback_names_the_module_and_the_line(rig: Rig) -> None:
    program = packed(
        main="from helper import f\ndef main(): f()", helper="def f():\n    raise ValueError('why')"
    )
    for _ in range(3):
        outcome = rig.run(program, name="prog")
        assert 'File "prog/main.py", line 2, in main\n    def main(): f()' in outcome.text
        assert 'File "prog/helper.py", line 2, in f\n    raise ValueError' in outcome.text


def test_modules_that_fail(rig: Rig) -> None:
    broken = packed(main="def main(): return 'x'", helper="x = 1\ndef f(:\n")
    assert 'File "program/helper.py", line 2\n    def f(:' in rig.run(broken).text
    missing = packed(main="import helper", helper="import nowhere")
    outcome = rig.run(missing)
    assert 'File "program/helper.py", line 1' in outcome.text
    assert "No module named 'nowhere'" in outcome.text
    absent = packed(main="from helper import x", helper="")
    assert "cannot import name 'x' from 'helper' (program/helper.py)" in rig.run(absent).text
    warned = packed(main="def main(): return ''", helper="x = '\\d'\n")
    logs = [rig.run(warned).log for _ in range(2)]
    assert logs[0] == logs[1]
    assert any("SyntaxWarning" in line and "helper.py:1" in line for _, line in logs[0])


@pytest.mark.parametrize("changed", [False, True])
def test_modules_of_the_library_are_there_before_they_are_imported(rig: Rig, changed: bool) -> None:
    folder = shipped_folder("inferlets") / "async_function_calling"
    _, *others = read_modules(folder / "main.py").items()
    modules = dict(others)
    if changed:
        modules["asynclm/cml/dialect.py"] += b"\nMARK = 1\n"
    main = b"""
import sys
def main():
    before = sorted(name for name in sys.modules if name.startswith("asynclm"))
    import asynclm.cml.dialect as one
    return [len(before), hasattr(one, "MARK"), one.__file__]
"""
    program = pack({"main.py": main, **modules}).decode()
    for _ in range(2):  # compiled, then restored
        outcome = rig.run(program, name="async_function_calling")
        assert outcome.ok, outcome.text
        there, marked, file = json.loads(outcome.text)
        assert bool(there) is not changed
        assert marked is changed
        assert file == "async_function_calling/asynclm/cml/dialect.py"

"""The SDK for JavaScript and TypeScript, on a real server."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pie_py.client.errors import ClientError
from pie_py.client.sync import Client
from pie_py.wire.javascript import pack

GUESTS = Path(__file__).parent / "guests"
ROOT = GUESTS.parents[2]
Feature = Callable[[str], Any]


@pytest.fixture(scope="module")
def feature(client: Client) -> Feature:
    """Runs one of the features of `features.ts`; its result."""
    program = client.upload(GUESTS / "features.ts")
    return lambda name: json.loads(client.launch(program, [name]).result())


def test_every_way_to_read_gives_the_text_of_the_python_sdk(
    client: Client, feature: Feature
) -> None:
    program = client.upload(ROOT / "inferlets" / "text_completion" / "main.py", name="completion")
    options = ["--prompt", "The capital of", "--max-tokens", "24"]
    python = "".join(map(str, client.launch(program, options)))
    assert feature("ways") == [python] * 7


def test_forks_go_on_at_once_and_leave_their_origin_alone(feature: Feature) -> None:
    told = feature("forks")
    assert told["texts"][0] == told["texts"][2] == told["after"] != told["texts"][1]
    assert told["length"] == 4 + 8
    assert feature("race") == [True, None]


def test_a_saved_fork_and_its_origin_leave_each_other_alone(feature: Feature) -> None:
    length, opened = feature("savedFork")
    assert length == opened


def test_stop_strings(feature: Feature) -> None:
    told = feature("stops")
    before = told["whole"].partition(told["stop"])[0]
    assert told["collected"] == told["streamed"] == before
    assert told["done"]


def test_seeds(feature: Feature) -> None:
    told, again = feature("seeds"), feature("seeds")
    for way in ("same", "penalty", "own"):
        assert told[way][0] == told[way][1] == again[way][0], way
    assert told["other"] != told["same"][0]
    assert told["random"][:2] != again["random"][:2]


def test_grammars(feature: Feature) -> None:
    told = feature("grammar")
    assert isinstance(json.loads(told["text"])["n"], int)
    assert told["complete"]
    assert told["choice"] in ("red", "green")
    assert "a choice is between texts" in told["oneText"]
    assert isinstance(told["value"]["n"], int)
    assert "was cut off after 3 tokens" in told["cut"]


def test_generations_that_are_not_read_to_their_end_leave_nothing(feature: Feature) -> None:
    """JavaScript tells of nothing that is dropped: samplers and matchers are few."""
    assert feature("abandoned") > 70


def test_a_rule_of_the_program(feature: Feature) -> None:
    told = feature("choose")
    assert (told["tokens"], told["seen"]) == (4, [256] * 4)
    assert "`step.distribution` and `accept`" in told["subclass"]


def test_several_tokens_at_once(feature: Feature) -> None:
    told = feature("several")
    assert told["next"] == told["greedy"][1:3]


def test_log_probabilities_are_those_of_steps(feature: Feature) -> None:
    told = feature("scored")
    assert len(told["tokens"]) == 9
    for logprobs in told["found"]:
        assert logprobs == pytest.approx(told["steps"], abs=1e-4)


def test_chats(feature: Feature) -> None:
    told = feature("chat")
    assert told["tokens"] > 10
    assert isinstance(told["answer"], str)


def test_saved_contexts(feature: Feature) -> None:
    told = feature("saved")
    assert told["listed"]
    assert told["texts"][0] == told["texts"][1]
    assert told["gone"] is None


def test_store_and_messages(feature: Feature) -> None:
    assert feature("server") == [["js/a"], "12", None, '{"a":1}', "x"]


def test_clocks_and_timers_are_the_servers(feature: Feature) -> None:
    told = feature("clocks")
    assert told["order"] == ["early", "late"]
    assert told["beats"] == 3
    assert told["passed"] >= 50
    now, epoch, same = told["dates"]
    assert abs(now / 1000 - time.time()) < 60
    assert epoch == 0 <= same - now
    assert told["kind"]
    assert told["text"] == "string"


def test_errors_say_what_is_wrong(feature: Feature) -> None:
    unknown, length, temperature, penalty, token, empty, forgotten = feature("wrong")
    assert unknown == "unknown-model"
    assert "length 99 is outside" in length
    assert temperature == penalty == "invalid-argument"
    assert "-1 is no integer" in token
    assert "fill something" in empty
    assert "is an `await` missing?" in forgotten


def test_talk_with_the_client(client: Client) -> None:
    instance = client.launch(client.upload(GUESTS / "features.ts"), ["talk"])
    assert instance.receive() == "ask"
    instance.send("hello")
    instance.send(b"\0\1")
    assert instance.receive() == b"\0\1"
    assert instance.result() == "HELLO!"


def test_the_console_is_the_log(client: Client) -> None:
    instance = client.launch(client.upload(GUESTS / "features.ts"), ["log"])
    assert instance.result() == "local"
    lines = [(line["level"], line["text"]) for line in instance.logs()["lines"]]
    assert lines[:4] == [
        ("info", 'one 2 {"three":[3]}'),
        ("warning", "careful"),
        ("warning", "two lines"),
        ("error", "RangeError: far"),
    ]
    assert [text.strip() for _, text in lines[4:]] == [
        "at log, features.ts:259",
        "at main, features.ts:285",
    ]


def test_all_of_the_console_is_seen(client: Client) -> None:
    calls = (
        "console.time('t'); console.timeEnd('t'); console.table([1]); console.dir({ a: 1n });"
        " console.assert(0, 'x'); console.assert(1); console.group('g'); console.groupEnd();"
        " console.count(); console.count(); console.log({ get a() { throw 1; } });"
    )
    source = f"export function main() {{ {calls} }}"
    instance = client.launch(client.upload(pack({"app.js": source.encode()}), name="app"))
    instance.result()
    first, *lines = [line["text"] for line in instance.logs()["lines"]]
    assert re.fullmatch(r"t: \d+\.\d+ ms", first)
    told = ["[1]", '{"a":1}', "assertion failed x", "g", "default: 1", "default: 2"]
    assert lines == [*told, "[object Object]"]


def test_data_is_the_json_of_the_python_sdk(client: Client) -> None:
    source = (
        "import { session } from 'inferlet';\nexport function main() {\n"
        " const all = { b: new Uint8Array([0, 255]), f: new Float32Array([1.5]), s: new Set([1]),"
        " m: new Map([['k', 2n ** 70n]]), e: new RangeError('far'), t: '\\u2028\\ud800' };\n"
        " session.send(all); return all; }"
    )
    instance = client.launch(client.upload(pack({"app.js": source.encode()}), name="app"))
    told = (
        '{"b":"AP8=","f":[1.5],"s":[1],"m":{"k":1180591620717411303424},"e":"RangeError: far",'
        '"t":"\\u2028\\ud800"}'
    )
    assert instance.receive() == f"{told}\n"
    assert instance.result() == told


def failure(client: Client, source: str, *args: str, path: str = "app.js") -> str:
    """The error of a program."""
    program = client.upload(pack({path: source.encode()}), name="app")
    with pytest.raises(ClientError) as raised:
        client.launch(program, args).result()
    return str(raised.value)


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("export function main() {\n  let = 3 +;\n}", "app.js: "),
        (
            "function deep() { throw new TypeError('no'); }\n\nexport async function main() {\n"
            "  await null;\n  deep();\n}",
            "TypeError: no\n    at deep, app.js:1\n    at main, app.js:5",
        ),
        ("export function main() {\n  nothing.there();\n}", "nothing is not defined"),
        (
            "import fs from 'fs';\nexport const main = () => fs;",
            "does not run in Node.js, which has fs",
        ),
        ("export function main() { return () => 1; }", "neither text nor JSON"),
        ("export function main() { throw 'a text'; }", "thrown: a text"),
        ("export const main = () => main();", "too much recursion"),
        (
            "export function main() { throw new Error('a', { cause: new Error('b') }); }",
            "caused by Error: b",
        ),
        (
            "export const main = () => Promise.any([Promise.reject(new Error('a'))]);",
            "of which Error: a",
        ),
        (
            "export function main() { const e = new Error('own'); e.cause = e; throw e; }",
            "Error: own",
        ),
        ("export function main() { throw { toString() { throw 1; }, a: 1 }; }", 'thrown: {"a":1}'),
        (
            "export function main() { throw new Proxy({}, { get() { throw 1; } }); }",
            "cannot be shown",
        ),
        ("export const main = () => ({ text: Promise.resolve(1) });", "a promise is no data"),
    ],
)
def test_a_failure_says_what_and_where(client: Client, source: str, told: str) -> None:
    assert told in failure(client, source)


NESTED = "let a = []; for (let i = 0; i < 1e5; i++) a = [a];"


@pytest.mark.parametrize(
    "deep",
    [
        "JSON.parse('['.repeat(100000))",
        f"{NESTED} JSON.stringify(a)",
        f"{NESTED} String(a)",
        "const f = () => f(); f()",
        "const f = () => [1].map(f); f()",
        "new RegExp('('.repeat(100000) + ')'.repeat(100000))",
        "new RegExp('(?:'.repeat(5000) + 'x' + ')*'.repeat(5000)).exec('x')",
        "eval('['.repeat(100000))",
    ],
)
def test_what_is_too_deep_can_be_caught(client: Client, deep: str) -> None:
    source = f"export function main() {{ try {{ {deep} }} catch (e) {{ return e.name; }} }}"
    program = client.upload(pack({"app.js": source.encode()}), name="app")
    assert client.launch(program, []).result() in ("InternalError", "RangeError", "SyntaxError")


def test_options(client: Client) -> None:
    source = """
        import { parseArgs } from "inferlet";
        export default (args) => parseArgs(args, {
          maxTokens: { type: Number, default: 64, help: "the most" },
          text: { type: String },
          quiet: { type: Boolean, default: false },
        });
    """
    program = client.upload(pack({"o.js": source.encode()}), name="o")
    found = client.launch(program, ["--text=a=b", "--max-tokens", "5", "--quiet"]).result()
    assert json.loads(found) == {"text": "a=b", "maxTokens": 5, "quiet": True}
    for args, told in (
        ([], "usage: --text is missing"),
        (["--text"], "usage: --text wants a value"),
        (["--max-tokens", "x"], "wants a number, not x"),
        (["--text=a", "--max-tokens="], "usage: --max-tokens wants a number"),
        (["--text=a", "--quiet=false"], "usage: --quiet takes no value"),
        (["--help"], "--max-tokens NUMBER  the most (default: 64)"),
        (["--loud"], "there is no option --loud"),
    ):
        with pytest.raises(ClientError, match=f"(?s).*{told.replace('(', '.').replace(')', '.')}"):
            client.launch(program, args).result()


def test_one_program_of_a_name_never_gets_the_code_of_another(client: Client) -> None:
    """The runtime keeps what it has compiled, by content."""
    for text in ("one", "two", "one"):
        source = f"export const main = async () => '{text}';".encode()
        program = client.upload(pack({"app.js": source}), name="app")
        assert client.launch(program).result() == text


def test_a_program_that_spins_ends_alone(client: Client) -> None:
    source = b"export function main() { const all = []; for (;;) all.push(new Uint8Array(1e6)); }"
    program = client.upload(pack({"app.js": source}), name="greedy")
    with pytest.raises(ClientError):
        client.launch(program).result(timeout=60)
    assert client.launch(client.upload(pack({"a.js": b"export const main = () => 1"}), name="a"))

"""The mistakes that beginners make in JavaScript, and what they are told."""

from __future__ import annotations

import json

import pytest
from support.mistakes import documented

from pie_py.client import ClientError
from pie_py.client.sync import Client
from pie_py.wire.javascript import pack

IMPORT = 'import { Context, Model, parseArgs, Sampler } from "inferlet";\n'
MAIN = "export async function main(args) {\n"
OPEN = f"{IMPORT}{MAIN}  const context = new Context(Model.load());\n"
ONCE = f"{OPEN}  context.fill('Once');\n"

MISTAKES = {
    "no await": f'{ONCE}  return "so: " + context.generate().collectText();\n}}\n',
    "wrong import": 'import _ from "lodash";\nexport const main = () => _.now();\n',
    "a name of the SDK misspelt": (
        'import { Contxt } from "inferlet";\nexport const main = () => new Contxt();\n'
    ),
    "a method misspelt": f"{ONCE}  return context.genrate();\n}}\n",
    "an option misspelt": (
        f"{ONCE}  return context.generate(Sampler.argmax(), {{ maxToken: 4 }}).collectText();\n}}\n"
    ),
    "options where the sampler belongs": (
        f"{ONCE}  return context.generate({{ maxTokens: 4 }}).collectText();\n}}\n"
    ),
    "a prompt that is too long": (
        f"{OPEN}  context.fill('word '.repeat(5000));\n"
        "  return context.generate().collectText();\n}\n"
    ),
    "contexts that are never freed": (
        f"{OPEN}  const kept = [];\n  for (;;) {{\n    kept.push(context.fork());\n"
        "    await kept.at(-1).fill('a').flush();\n  }\n}\n"
    ),
    "a promise that nothing keeps": "export const main = () => new Promise(() => {});\n",
    "a wrong argument": (
        f"{IMPORT}{MAIN}  return parseArgs(args, {{ prompt: {{ type: String }} }});\n}}\n"
    ),
    "the network": "export const main = () => fetch('http://example.org/');\n",
    "what Node.js has": "export const main = () => process.argv[2];\n",
    "no main": "export const man = () => 1;\n",
    "no JavaScript": "export const main = ( => 1;\n",
}


def test_the_page_has_all_mistakes() -> None:
    assert documented("JavaScript").keys() == MISTAKES.keys()
    assert all(documented("JavaScript").values())


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_author_is_told(client: Client, mistake: str) -> None:
    program = pack({"it.js": MISTAKES[mistake].encode()})
    with pytest.raises(ClientError) as caught:
        client.launch(client.upload(program, "it"), ["--propmt", "Once"]).result()
    told = str(caught.value)
    assert [text for text in documented("JavaScript")[mistake] if text not in told] == [], told


@pytest.mark.parametrize(
    ("line", "how"),
    [
        ("context.generate().collectText().trim()", "if it is a promise, write `await`"),
        ("for (const text of context.generate().streamText()) ;", "`for await` reads"),
        ("context.distribution(3).tokens", "write `await` before the call"),
        ("context.flush().toString()", "write `await` before the call"),
        ("JSON.stringify({ a: context.flush() })", "a promise is no data"),
        ("return context.generate()", "await generator.collectText()"),
        ("return [1].values()", "[...iterator]"),
        ("context.append('a')", "a list of numbers is wanted, not string"),
        ("context.user({ role: 'user' })", "text is wanted, not object"),
        ("new Context('pie-tiny')", "as `Model.load()`"),
        ("context.release(); await context.generate().collectText()", "been released?"),
        ("new Worker('x')", "neither in Node.js nor in a browser"),
        ("require('fs')", "no files, network or processes"),
        ("context.generate(null, { stop: 1.5 })", "1.5 is neither a token's id nor a text"),
        ("context.generate(null, { stop: [-1] })", "-1 is outside the vocabulary (0 to 2402)"),
        ("return context", "a context is no data: give its text"),
        ("return { of: context.model }", "a model is no data: give its text"),
    ],
)
def test_a_mistake_is_told_how_it_is_mended(client: Client, line: str, how: str) -> None:
    source = pack({"it.js": f"{ONCE}  {line};\n}}\n".encode()})
    with pytest.raises(ClientError) as caught:
        client.launch(client.upload(source, "it")).result()
    assert how in str(caught.value)


def test_a_promise_that_is_logged(client: Client) -> None:
    source = f"{ONCE}  console.log(context.flush());\n}}\n"
    instance = client.launch(client.upload(pack({"it.js": source.encode()}), "it"))
    instance.result()
    assert [line["text"] for line in instance.logs()["lines"]] == [
        "[promise: write `await` before the call]"
    ]


def test_a_line_of_many_megabytes_is_cut(client: Client) -> None:
    long = "'x'.repeat(9 << 20)"
    source = f"{IMPORT}import {{ runtime }} from 'inferlet';\n{MAIN}  console.log({long});\n"
    source += f"  runtime.log({long});\n  return 'on';\n}}\n"
    assert client.launch(client.upload(pack({"it.js": source.encode()}), "it")).result() == "on"


def test_options_that_are_null_or_none(client: Client) -> None:
    """Null is the default, and what is no option of a call is refused."""
    source = f"""import {{ Grammar, http, session }} from "inferlet";
{ONCE}
  const nothing = {{ stop: null, seed: null, grammar: null, speculate: null, maxTokens: null }};
  const said = await context.fork().generate(null, {{ ...nothing, runAhead: null }}).collectText();
  const same = await context.fork().generate().collectText();
  const wrong = [
    () => context.generate(null, 5), () => context.generate(null, {{ grammar: "x" }}),
    () => new Context(Model.load(), 5), () => Grammar.jsonSchema({{}}, {{ strickt: true }}),
    () => http.get("http://a", {{ header: {{}} }}), () => context.generate(null, {{ stop: [1.5] }}),
    () => session.sendBlob(new Uint8Array(3 << 20)),
  ];
  const told = [];
  for (const call of wrong) {{
    try {{ await call(); told.push("") }} catch (error) {{ told.push(error.message) }}
  }}
  session.send([said === same, ...told]);
  throw {{ a: 1 }};
}}
"""
    instance = client.launch(client.upload(pack({"it.js": source.encode()}), "it"))
    same, *told = json.loads(instance.receive() or "")
    assert same
    assert told == [
        "generate takes its options as an object, not as 5",
        "generate takes a grammar, such as Grammar.regex(text)",
        "Context takes its options as an object, not as 5",
        "jsonSchema has no option strickt; did you mean strict?",
        "request has no option header; did you mean headers?",
        "stop: 1.5 is neither a token's id nor a text",
        "limit-exceeded: a list of 3145728 elements; 2750000 at most",
    ]
    with pytest.raises(ClientError, match=r'thrown: \{"a":1\}'):
        instance.result()

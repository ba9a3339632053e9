"""llm, of the command line and of Python, with a server of one's own in its configuration."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from cases import MODEL, V1, case, run

FOLDER = Path(tempfile.mkdtemp(prefix="pie-"))
os.environ["LLM_USER_PATH"] = str(FOLDER)
TRAITS = {"supports_schema": True, "supports_tools": True}
OWN = {"model_id": "own", "model_name": MODEL, "api_base": V1, **TRAITS}
TEXT = {"model_id": "text", "model_name": MODEL, "api_base": V1, "completion": True}
(FOLDER / "extra-openai-models.yaml").write_text(json.dumps([OWN, TEXT]))

import llm  # noqa: E402 - it reads the configuration

model = llm.get_model("own")
COOL = {"temperature": 0, "max_tokens": 24}
WIDE = {"temperature": 0, "max_tokens": 200}
POINT = {
    "type": "object",
    "properties": {"kind": {"enum": ["a", "b"]}, "x": {"const": 1}},
    "required": ["kind"],
}


def command(*words):
    done = subprocess.run([sys.executable, "-m", "llm", *words], capture_output=True, text=True)
    assert not done.returncode, done.stderr
    return done.stdout


def lookup(name: str) -> str:
    """Looks a name up."""
    return f"{name} is there"


@case()
def prompts():
    whole = model.prompt("Hi", system="Be brief.", stream=False, **COOL)
    assert whole.text()
    streamed = model.prompt("Hi", system="Be brief.", **COOL)
    assert "".join(streamed) == whole.text()
    assert streamed.usage().output == whole.usage().output


@case()
def conversations():
    talk = model.conversation()
    first = talk.prompt("Hi", **COOL)
    first.text()
    again = talk.prompt("And then?", **COOL)
    again.text()
    assert again.usage().input > first.usage().input


@case()
def schemas():
    found = json.loads(model.prompt("A point", schema=POINT, **WIDE).text())
    assert found["kind"] in ("a", "b")


@case()
def tools():
    model.prompt("Who is Ann?", tools=[lookup], **WIDE).text()
    model.conversation(tools=[lookup], chain_limit=3).chain("Who is Ann?", options=WIDE).text()
    call = llm.ToolCall(name="lookup", arguments={"name": "Ann"}, tool_call_id="call_1")
    result = llm.ToolResult(name="lookup", output="there", tool_call_id="call_1")
    talk = model.conversation()
    first = talk.prompt("Who is Ann?", tools=[lookup], **COOL)
    first.text()
    first.add_tool_call(call)
    talk.prompt("", tools=[lookup], tool_results=[result], **COOL).text()


@case()
def completions():
    text = llm.get_model("text").prompt("The capital of", **COOL)
    assert text.text()


@case()
async def asynchronous():
    whole = await llm.get_async_model("own").prompt("Hi", **COOL).text()
    assert whole == model.prompt("Hi", **COOL).text()


@case(long=True)
def command_line():
    options = ("-m", "own", "-o", "temperature", "0", "-o", "max_tokens", "200")
    assert command("prompt", "Hi", *options).strip()
    shown = command("prompt", "A point", *options, "--schema", json.dumps(POINT))
    assert json.loads(shown)["kind"] in ("a", "b")
    assert command("prompt", "And?", "-c", *options[2:]).strip()


run()

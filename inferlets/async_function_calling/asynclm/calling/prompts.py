"""Prompts: what a model is told of its tools, and how results come back in synchronous turns.

`compact` is the form that pie-tiny and adapters called `cml` were trained on, `json` is for any
other model (AsyncLM, section 4).
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from asynclm.calling.options import Mode, Style
from asynclm.cml.calls import Call, write_call
from asynclm.cml.dialect import Dialect, call_block
from asynclm.tools.tool import Tool
from inferlet.context import Context
from inferlet.model import Model

COMPACT_MODELS = ("pie-tiny",)  # beginnings of names of models trained on the compact form
ADAPTER = "cml"  # name of an adapter that was trained on the compact form, for a model with it
COMPACT_TASKS = 5  # the most in a request that those models have seen

_COMPACT = {
    Mode.SYNC: "one at a time",
    Mode.SYNC_PARALLEL: "in parallel",
    Mode.ASYNC: "asynchronous",
}


def adapter_for(model: Model) -> str | None:
    """The adapter through which a model knows CML, if it has one."""
    return ADAPTER if "adapter" in model.traits and ADAPTER in model.adapters else None


def style_for(model: Model, adapter: str | None) -> Style:
    """The form that suits a model through an adapter, by their names."""
    trained = adapter == ADAPTER or model.name.startswith(COMPACT_MODELS)
    return Style.COMPACT if trained else Style.JSON


def system_prompt(style: Style, mode: Mode, tools: Sequence[Tool], dialect: Dialect) -> str:
    """The system message: how calls are made, and the functions with their expected times."""
    if style is Style.COMPACT:
        lines = (
            dialect.escape(f"{tool.name}{_estimate(tool)}({', '.join(tool.parameters)})")
            for tool in tools
        )
        return "\n".join([f"Calls: {_COMPACT[mode]}.", *lines])
    listed = "\n".join(
        dialect.escape(json.dumps(tool.to_json(), ensure_ascii=False)) for tool in tools
    )
    explained = _ASYNCHRONOUS if mode is Mode.ASYNC else _SYNCHRONOUS[mode]
    example = _example(mode)
    return f"{explained}\n\n{example}\n\nFunctions, with the seconds they take:\n{listed}"


def _estimate(tool: Tool) -> str:
    """Hundredths of a second, one of the tokens `~01` to `~99` that pie-tiny has for it."""
    return f"~{min(max(round(tool.seconds * 100), 1), 99):02d}"


def too_much(style: Style, request: str) -> str:
    """Why a model may leave part of a request undone; empty if it has seen as much."""
    tasks = sum(line.startswith("- ") for line in request.splitlines())
    if style is not Style.COMPACT or tasks <= COMPACT_TASKS:
        return ""
    return (
        f"the request has {tasks} tasks, and this model has never seen more than {COMPACT_TASKS}:"
        " it will leave some undone; ask for fewer at a time"
    )


def request_text(style: Style, text: str) -> str:
    """The user's request, in the form that the model knows: lists of several tasks, one task in a
    sentence. A list of one pie-tiny does twice.
    """
    first, *others = text.strip().split("\n- ")
    return first.removeprefix("- ") if style is Style.COMPACT and not others else text


def task_text(style: Style, text: str) -> str:
    """The text of an interrupt by the user, in the form that the model knows."""
    text = request_text(style, text)
    if style is Style.COMPACT and not text.startswith("also "):
        return f"also {text}"
    return text


def add_tool_turn(ctx: Context, style: Style, dialect: Dialect, results: list[int]) -> None:
    """Ends the model's turn, appends one with the results' tokens, and starts the model's next.
    Raises ValueError: the model's chat template can't do that.
    """
    codec = dialect.codec
    if style is Style.COMPACT and "<|tool|>" in dialect.special:
        before, after = "\n<|tool|>\n", "<|end|>\n<|assistant|>\n"
        stop = ctx.model.stop_tokens[:1]
        ctx.append([*stop, *codec.encode(before), *results, *codec.encode(after)])
        return
    # Few templates have a form for results of calls that are not the template's own.
    ctx.seal().user(codec.decode(results)).cue()


_CALLS = (
    "You can call functions. A call is written [CALL]id[HEAD]call[END], where id is a name of your"
    " choice that you have not used before. Its result comes as [INTR]id[HEAD]result[END], or as an"
    " error; you never write [INTR] yourself. "
)
_IN_TURNS = (
    ", then end your turn; the results come in the next message. When all is done, answer in words."
)
_SYNCHRONOUS = {
    Mode.SYNC: f"{_CALLS}Make one call{_IN_TURNS}",
    Mode.SYNC_PARALLEL: f"{_CALLS}Make all calls that do not need each other's results{_IN_TURNS}",
}
_ASYNCHRONOUS = (
    f"{_CALLS}Calls run while you go on writing: do not wait for a result that you do not need yet."
    " Of the calls that can be made now, make the one that takes longest first. When everything"
    " that is left to do needs a result that has not come, write [TRAP][END] to wait for the next"
    " one."
    " [INTR]user[HEAD]...[END] is a further task, or a correction, by the user. When all is done,"
    " answer in words."
)


def _example(mode: Mode) -> str:
    def call(identifier: str, name: str, **arguments: str) -> str:
        return "".join(call_block(identifier, write_call(Call(name, arguments))))

    train = call("a", "find_train", start="Bern", end="Basel")
    mail = call("c", "send_mail", text="The train leaves at 9:31.")
    time, done = '[INTR]a[HEAD]"9:31"[END]', "[INTR]c[HEAD]true[END]"
    if mode is Mode.ASYNC:
        weather = call("b", "weather", city="Basel")
        return (
            f'Example: {train}{weather}[TRAP][END][INTR]b[HEAD]"rain"[END][TRAP][END]{time}{mail}'
            f"[TRAP][END]{done}The train leaves at 9:31, and it rains in Basel. The mail is sent."
        )
    return (
        f"Example: {train} (next message: {time}) {mail} (next message: {done}) The mail is sent."
    )

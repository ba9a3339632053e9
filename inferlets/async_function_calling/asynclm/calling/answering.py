"""The command line: answers its request, and shows its client what happens."""

from __future__ import annotations

import asyncio
import json
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import Any

from asynclm.calling.generation import Generation
from asynclm.calling.options import GREEDY, POLICIES, Inbox, Mode, Options, Script, Style
from asynclm.calling.prompts import adapter_for, style_for
from asynclm.calling.record import Record
from asynclm.tools.client import ClientLink
from asynclm.tools.kinds import BadTools, load_tools
from asynclm.tools.tool import Tool
from inferlet import messaging, session
from inferlet.model import Model
from inferlet.sample import Sampler

DEMO_REQUEST = (
    "- fetch weather with city Paris, then send mail with text the result.\n"
    "- find train with place Basel."
)
MOST_SHOWN = 12  # functions that are named before the demonstration

DEMO_TOOLS = json.dumps(
    [
        {
            "name": name,
            "parameters": {
                "properties": {key: {} for key in parameters},
                "required": parameters,
            },
            "seconds": seconds,
            "run": {"kind": "simulated", "seconds": seconds, "result": result},
        }
        for name, parameters, seconds, result in (
            ("fetch_weather", ["city"], 0.4, "mild"),
            ("find_train", ["place"], 0.3, 931),
            ("send_mail", ["text"], 0.1, "sent"),
        )
    ]
)


def parse(args: Sequence[str], **more: str) -> tuple[Namespace, ArgumentParser]:
    """The options of a command line, and what refuses those that are wrong together; there are
    `more`, by their names with their help.
    """
    parser = ArgumentParser(
        "async_function_calling",
        description="Answers a request with function calls. A model that was not trained on CML, as"
        " pie-tiny was, is made to begin with a call; which one is its choice.",
    )
    valued: set[str] = set()

    def add(option: str, **how: Any) -> None:
        if parser.add_argument(option, **how).nargs is None:
            valued.add(option)

    add("--request", default=DEMO_REQUEST, help="what is to be done; a demonstration by default")
    add(
        "--tools", help="JSON list of tools, see docs/async-function-calling.md; @FILE reads a file"
    )
    add("--mode", choices=list(Mode), default=Mode.ASYNC, help="how calls are made")
    add("--model", help="the server's default one if not given")
    add("--adapter", help="LoRA of the model that all goes through; `cml` if it has that one")
    add("--style", choices=list(Style), help="of the prompt; what suits the model if not given")
    add("--policy", choices=POLICIES, default="cheapest", help="of the KV cache in waits")
    add(
        "--max-tokens",
        type=int,
        help="most tokens to generate; 1024, or 256 of a model that was not trained on CML",
    )
    add("--most-value-tokens", type=int, default=256, help="of a result; longer ones are cut")
    add("--limit", type=int, default=16, help="calls that run at once")
    add("--timeout", type=float, default=30.0, help="seconds for a call")
    add("--temperature", type=float, default=0.0, help="0 is greedy")
    add("--seed", type=int, help="makes the choices repeatable")
    add("--interactive", action="store_true", help="take tasks from the client until it closes")
    add("--topic", help="take messages of other inferlets that are broadcast to this topic")
    add("--events", action="store_true", help="send events, and return all about it, as JSON")
    for name, text in more.items():
        add(f"--{name}", help=text)
    joined: list[str] = []
    words = iter(args)
    for word in words:  # the one after an option is its value, even if it begins with `-`
        value = next(words, None) if word in valued else None
        joined.append(word if value is None else f"{word}={value}")
    return parser.parse_args(joined), parser


async def answer(options: Namespace, parser: ArgumentParser, script: Script | None = None) -> str:
    """Runs one generation; returns nothing, or all about it as JSON. The parser refuses options
    that are wrong together; a script is written in place of the model's own choice.
    """
    model, mode = Model.load(options.model), Mode(options.mode)
    inbox = Inbox(open=options.interactive)
    link = ClientLink(inbox.put)
    try:
        tools = await load_tools(options.tools or DEMO_TOOLS, link)
        settings = _settings(options, mode, model, script)
        generation = Generation(model, tools, settings, inbox=inbox, on_event=_shown(options))
    except (BadTools, ValueError) as error:
        parser.error(str(error))
    listeners = _listeners(options, link, inbox)
    if not options.events:
        session.send(_beginning(options.request, tools, mode))
    try:
        record = await generation.run(options.request)
    finally:
        for listener in listeners:
            listener.cancel()
    if options.events:
        return json.dumps(record.to_json(), ensure_ascii=False)
    session.send(_ending(record))
    return ""


def _settings(options: Namespace, mode: Mode, model: Model, script: Script | None) -> Options:
    adapter = options.adapter or adapter_for(model)
    trained = script is not None or style_for(model, adapter) is Style.COMPACT
    most = 1024 if trained else 256
    return Options(
        mode=mode,
        style=Style(options.style) if options.style else None,
        sampler=_sampler(options),
        policy=options.policy,
        max_tokens=most if options.max_tokens is None else options.max_tokens,
        most_value_tokens=options.most_value_tokens,
        limit=options.limit,
        timeout=options.timeout,
        call_first=not trained,
        adapter=adapter,
        script=script,
    )


def _sampler(options: Namespace) -> Sampler:
    if options.temperature == 0:
        return GREEDY
    return Sampler(temperature=options.temperature, seed=options.seed)


def _listeners(options: Namespace, link: ClientLink, inbox: Inbox) -> list[asyncio.Task[None]]:
    """Tasks that listen to the client and to other inferlets, those that may be needed.

    While no other task waits, a token costs less.
    """
    loop = asyncio.get_running_loop()
    work = []
    if link.used or options.interactive:
        work.append(link.listen())
    if options.interactive:
        work.append(_close_with(link, inbox))
    if options.topic:
        work.append(_hear(options.topic, inbox))
    return [loop.create_task(one) for one in work]


async def _close_with(link: ClientLink, inbox: Inbox) -> None:
    await link.closed.wait()
    inbox.close()


async def _hear(topic: str, inbox: Inbox) -> None:
    with messaging.subscribe(topic) as messages:
        async for text in messages:
            try:
                message = json.loads(text)
                inbox.put(str(message["text"]), str(message["sender"]))
            except (ValueError, KeyError, TypeError):
                inbox.put(text, topic)


def _beginning(request: str, tools: Sequence[Tool], mode: Mode) -> str:
    """The lines that people are shown before anything happens."""
    offered = ", ".join(f"{tool.name} ({tool.seconds:.2g} s)" for tool in tools[:MOST_SHOWN])
    more = f" and {len(tools) - MOST_SHOWN} more" if len(tools) > MOST_SHOWN else ""
    return (
        f"Request:\n{request}\nFunctions, and how long they take: {offered}{more}\n"
        f"Mode {mode}; -> the model calls, <- it is told the result:\n"
    )


def _ending(record: Record) -> str:
    """The outcome, in a line."""
    ran = [
        c.ended - c.started for c in record.calls if c.ended is not None and c.started is not None
    ]
    failed = sum(call.failed for call in record.calls)
    lines = [
        f"\n{record.seconds:.2f} s in all. One after another the {len(record.calls)} calls alone"
        f" take {sum(ran):.2f} s; {record.generated_tokens} tokens were written,"
        f" {1e3 * record.token_seconds:.1f} ms each."
    ]
    if not record.calls:
        lines.append("The model wrote no call.")
    if failed:
        lines.append(f"{failed} calls had an error as their result.")
    if record.ended != "done":
        lines.append(f"It was ended at a limit: {record.ended}.")
    return "\n".join(lines) + "\n"


def _shown(options: Namespace) -> Any:
    """The function that tells the client of events: as JSON, or in words as they come."""
    if options.events:
        return session.send

    def show(event: dict[str, Any]) -> None:
        match event["type"]:
            case "text":
                session.send(event["text"])
            case "call":
                session.send(f"  {event['at']:6.3f} s  -> {event.get('id', '')}: {event['call']}\n")
            case "interrupt":
                session.send(f"  {event['at']:6.3f} s  <- {event['id']}: {event['value']}\n")
            case "trap":
                session.send(f"  {event['at']:6.3f} s     nothing to do: the model waits\n")

    return show

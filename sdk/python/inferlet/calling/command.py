"""The command line of the inferlets that call functions; each of them is one mode of it."""

from __future__ import annotations

import asyncio
import json
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import Any

from inferlet import messaging, session
from inferlet.calling.generation import GREEDY, Generation, Inbox, Options
from inferlet.calling.prompts import Mode, Style
from inferlet.calling.record import Record
from inferlet.cml.calls import Syntax
from inferlet.cml.grammars import Strictness
from inferlet.cml.script import Script
from inferlet.cml.traps import POLICIES
from inferlet.device import DeviceSampler
from inferlet.model import Model
from inferlet.tools.client import ClientLink
from inferlet.tools.estimates import learn, learned
from inferlet.tools.kinds import BadTools, load_tools
from inferlet.tools.tool import Tool

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
DEMO_REQUEST = (
    "- fetch weather with city Paris, then send mail with text the result.\n"
    "- find train with place Basel."
)


async def main(args: list[str], mode: Mode) -> str:
    """Runs one generation; returns its text, or all about it as JSON."""
    parser = _parser(mode)
    options = parser.parse_args(args)
    model = Model.load(options.model)
    inbox = Inbox(open=options.interactive)
    link = ClientLink(inbox.put)
    try:
        tools = await load_tools(options.tools or DEMO_TOOLS, link)
        if not options.declared_times:
            tools = await learned(tools)
        settings = _settings(options, mode)
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
    if not options.declared_times:
        await asyncio.gather(*(learn(*pair) for pair in generation.measured.items()))
    if options.events:
        return json.dumps(record.to_json(), ensure_ascii=False)
    session.send(_ending(record))
    return ""


def _parser(mode: Mode) -> ArgumentParser:
    parser = ArgumentParser(
        "async_function_calling", description=f"Answers a request with function calls ({mode})."
    )
    add = parser.add_argument
    add("--request", default=DEMO_REQUEST, help="what is to be done; a demonstration unless told")
    add(
        "--tools", help="JSON list of tools, see docs/async-function-calling.md; @FILE reads a file"
    )
    add("--model", help="the server's default one unless told")
    add("--syntax", choices=list(Syntax), default=Syntax.PYTHON, help="of calls")
    add("--style", choices=list(Style), help="of the prompt; what suits the model unless told")
    add("--strictness", choices=list(Strictness), default=Strictness.TOOLS, help="of calls")
    add("--policy", choices=POLICIES, default="cheapest", help="of the KV cache in waits")
    add("--stateless", action="store_true", help="recompute the KV cache for each turn")
    add("--max-tokens", type=int, default=1024, help="most tokens to generate")
    add("--most-value-tokens", type=int, default=256, help="of a result; longer ones are cut")
    add("--limit", type=int, default=16, help="calls that run at once")
    add("--timeout", type=float, default=30.0, help="seconds for a call")
    add("--temperature", type=float, default=0.0, help="0 is greedy")
    add("--seed", type=int, help="makes the choices repeatable")
    add("--declared-times", action="store_true", help="use the tools' own times, and learn none")
    add("--interactive", action="store_true", help="take tasks from the client until it closes")
    add("--topic", help="take messages of other inferlets that are broadcast to this topic")
    add("--script", help="JSON of calls to be written, whatever the model chooses; for benchmarks")
    add("--events", action="store_true", help="send events, and return all about it, as JSON")
    return parser


def _settings(options: Namespace, mode: Mode) -> Options:
    script = None
    if options.script:
        try:
            found = json.loads(options.script)
        except ValueError as error:
            raise ValueError(f"--script is not JSON: {error}") from None
        script = Script.from_json(
            found, most_a_turn=1 if mode is Mode.SYNC else None, asynchronous=mode.is_async
        )
    return Options(
        mode=mode,
        syntax=Syntax(options.syntax),
        style=Style(options.style) if options.style else None,
        strictness=Strictness(options.strictness),
        sampler=_sampler(options),
        policy=options.policy,
        stateless=options.stateless,
        max_tokens=options.max_tokens,
        most_value_tokens=options.most_value_tokens,
        limit=options.limit,
        timeout=options.timeout,
        script=script,
    )


def _sampler(options: Namespace) -> DeviceSampler:
    if options.temperature == 0:
        return GREEDY
    return DeviceSampler(temperature=options.temperature, seed=options.seed)


def _listeners(options: Namespace, link: ClientLink, inbox: Inbox) -> list[asyncio.Task[None]]:
    """Tasks that listen to the client and to other inferlets, as far as anybody may speak.

    Nobody is listened to without need: while nothing else waits, a token costs less.
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
    """What people are shown before anything happens."""
    offered = ", ".join(f"{tool.name} ({tool.seconds:.2g} s)" for tool in tools[:MOST_SHOWN])
    more = f" and {len(tools) - MOST_SHOWN} more" if len(tools) > MOST_SHOWN else ""
    return (
        f"Request:\n{request}\nFunctions, and how long they take: {offered}{more}\n"
        f"Mode {mode}; -> the model calls, <- it is told the result:\n"
    )


def _ending(record: Record) -> str:
    """What came of it, in a line."""
    ran = [
        c.ended - c.started for c in record.calls if c.ended is not None and c.started is not None
    ]
    failed = sum(call.failed for call in record.calls)
    lines = [
        f"\n{record.seconds:.2f} s in all. One after another the {len(record.calls)} calls alone take"
        f" {sum(ran):.2f} s; {record.generated_tokens} tokens were written, {1e3 * record.token_seconds:.1f}"
        " ms each."
    ]
    if failed:
        lines.append(f"{failed} calls had an error as their result.")
    if record.ended != "done":
        lines.append(f"It was ended at a limit: {record.ended}.")
    return "\n".join(lines) + "\n"


def _shown(options: Namespace) -> Any:
    """What tells the client of events: as JSON, or in words as they come."""
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

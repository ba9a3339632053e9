"""An agent that knows which of its APIs are used how: three optimizations that stack.

The documents of the APIs stay computed (`--cache`), calls go out as soon as they are written
(`--early`), and documents of what was called are dropped from the context (`--drop`). The model has
to be one that was trained on CML (docs/async-function-calling.md), such as pie-tiny.
"""

import asyncio
from hashlib import sha256

from inferlet import Context, Model, PieError, http, runtime, tools
from inferlet.tools import ToolCall


async def call(url: str, wanted: ToolCall) -> str:
    """A tool's answer."""
    response = await http.get(f"{url}/{wanted.name}", params=wanted.arguments)
    return await response.text()


def start(url: str, text: str, running: int) -> list[asyncio.Task[str]]:
    """Starts the calls of a text that do not run yet."""
    return [asyncio.create_task(call(url, one)) for one in tools.parse(text)[running:]]


async def documents(model: Model, head: str, apis: list[str], cache: bool) -> tuple[Context, int]:
    """A context that begins with the documents, and how many of its tokens were computed before."""
    name = f"apis/{sha256(repr((head, apis)).encode()).hexdigest()}"
    if cache and (context := Context.open(model, name)) is not None:
        return context, len(context)
    context = Context(model, prefix_cache=False).fill(head + "\n".join(apis))
    await context.flush()
    if cache:
        try:
            context.save(name)
        except PieError as error:
            if error.code != "already-exists":  # another launch has saved it
                raise
    return context, 0


async def main(
    apis: list[str],
    request: str,
    url: str,
    mode: str = "in parallel",
    cache: bool = False,
    early: bool = False,
    drop: bool = False,
    max_tokens: int = 200,
    model_name: str | None = None,
) -> dict[str, object]:
    """Returns the answer, what was called, the seconds, and the tokens that were computed.

    Args:
        apis: a line for each: `name~NN(parameter, ...)`, NN hundredths of a second.
        request: what to do.
        url: a call `f(x=1)` is `GET URL/f?x=1`, whose body is the result.
        mode: how calls are made: `in parallel`, or `one at a time`, each in a turn of its own.
        cache: keeps the keys and values of the documents for later launches.
        early: starts a call when it is written, not when the turn is over.
        drop: hides the document of an API once it was called.
        max_tokens: most tokens of a turn.
        model_name: one that the server serves.
    """
    model, began = Model.load(model_name), runtime.monotonic()
    if b"[CALL]" not in model.tokenizer.special_tokens()[1]:
        raise SystemExit(f"{model.name} was not trained on CML, as pie-tiny was: it has no [CALL]")
    head = f"<|begin|><|system|>\nCalls: {mode}.\n"
    context, known = await documents(model, head, apis, cache)
    context.fill(f"<|end|>\n<|user|>\n{request}<|end|>\n<|assistant|>\n")
    text, calls, turns = "", list[str](), 0
    while turns < 8:
        turns, text, running = turns + 1, "", list[asyncio.Task[str]]()
        generator = context.generate(max_tokens=max_tokens)
        if not early:
            text = await generator.collect_text()
        async for piece in generator.stream_text():
            text += piece
            if "[END]" in piece:
                running += start(url, text, len(running))
        wanted = tools.parse(text)
        if not wanted:
            break
        running += start(url, text, len(running))
        answers = [await task for task in running]
        calls += [one.name for one in wanted]
        if drop:
            for number, api in enumerate(apis):
                if any(api.startswith(one.name + "~") for one in wanted):
                    before = (head + "\n".join(apis[:n]) for n in (number, number + 1))
                    context.hide(*(len(model.tokenizer.encode(text)) for text in before))
        blocks = text.split("[CALL]")[1:]
        results = [
            f"[INTR]{b.partition('[')[0]}[HEAD]{a}[END]"
            for b, a in zip(blocks, answers, strict=True)
        ]
        context.fill(f"<|end|>\n<|tool|>\n{''.join(results)}<|end|>\n<|assistant|>\n")
    return {
        "answer": text,
        "calls": calls,
        "seconds": runtime.monotonic() - began,
        "computed": len(context) - known,
        "hidden": len(context.sequence.hidden),
    }

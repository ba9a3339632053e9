"""Answers one request of chat or completions, in the words of OpenAI's API.

`pie-py batch` runs it for each line of a file, unless it is given another program.
"""

import time
from typing import Any

from inferlet import Context, Generator, Grammar, Model, Sampler, gather

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
DEFAULT_TOKENS = 16  # of completions
NO_EFFECT = ("user", "metadata", "store", "service_tier", "safety_identifier", "stream")


def form(response_format: dict[str, Any] | None) -> Grammar | None:
    """The form that a text has to have."""
    kind = (response_format or {}).get("type", "text")
    if response_format is None or kind == "text":
        return None
    if kind == "json_object":
        return Grammar.json()
    if kind == "json_schema":
        described = response_format["json_schema"]
        return Grammar.json_schema(described["schema"], strict=bool(described.get("strict")))
    raise SystemExit(f"response_format: there is no type {kind!r}")


def choice(url: str, number: int, text: str, reason: str) -> dict[str, Any]:
    """One text, as the API has it."""
    said = {"message": {"role": "assistant", "content": text}} if url == CHAT else {"text": text}
    return {"index": number, **said, "logprobs": None, "finish_reason": reason}


async def main(
    prompt: str | list[int] = "",
    messages: list[dict[str, Any]] | None = None,
    url: str = "",
    model: str | None = None,
    max_tokens: int | None = None,
    max_completion_tokens: int | None = None,
    stop: str | list[str] | None = None,
    n: int = 1,
    seed: int | None = None,
    ignore_eos: bool = False,
    response_format: dict[str, Any] | None = None,
    **parameters: Any,
) -> Any:
    """Returns the text, or the texts if there are `n`; with a `url` the whole answer.

    Args:
        prompt: a text, or its tokens.
        messages: of a chat, in the place of a prompt.
        url: of the API: "/v1/chat/completions" or "/v1/completions".
        model: its name; the server's first one by default.
        max_tokens: most tokens of a text; 16 after a prompt, else up to the end of the context.
        max_completion_tokens: its other name.
        stop: texts that end a text.
        n: how many texts.
        seed: makes the choices repeatable; the texts' are this one and those that follow it.
        ignore_eos: the model's own end does not end a text.
        response_format: the form of a text: `json_object`, or `json_schema` with its schema.
        parameters: of a sampler.
    """
    if url not in ("", CHAT, COMPLETIONS) or parameters.get("stream"):
        raise SystemExit(f"{url}: {CHAT} and {COMPLETIONS} are answered, and nothing is streamed")
    for name in (*NO_EFFECT, *(one for one, value in parameters.items() if value is None)):
        parameters.pop(name, None)
    if parameters.get("logprobs"):
        raise SystemExit("logprobs: the API of batches over HTTP, /v1/batches, has them")
    sampler, loaded = Sampler(**parameters), Model.load(model)
    context = Context(loaded)
    most = max_completion_tokens if max_tokens is None else max_tokens
    if messages is not None:
        for message in messages:
            context.message(**message)
        context.cue()
    else:
        context.fill(prompt) if isinstance(prompt, str) else context.append(prompt)
        most = DEFAULT_TOKENS if most is None else most
    read = len(context)
    ends: list[str | int] = [stop] if isinstance(stop, str) else [*(stop or [])]
    ends += [] if ignore_eos else loaded.stop_tokens

    def generation(branch: Context, number: int) -> Generator:
        own = None if seed is None else seed + number
        grammar = form(response_format)
        return branch.generate(sampler, max_tokens=most, stop=ends, seed=own, grammar=grammar)

    if n > 1:
        await context.flush()
    branches = [context, *(context.fork() for _ in range(n - 1))]
    generations = [generation(branch, number) for number, branch in enumerate(branches)]
    texts = await gather(*(each.collect_text() for each in generations))
    if not url:
        return texts[0] if n == 1 else texts
    room = loaded.max_position - read
    full = min(room, room if most is None else most)
    counts = [each.tokens_generated for each in generations]
    reasons = ["length" if count >= full else "stop" for count in counts]
    return {
        "object": "chat.completion" if url == CHAT else "text_completion",
        "created": int(time.time()),
        "model": loaded.name,
        "choices": [
            choice(url, number, text, reason)
            for number, (text, reason) in enumerate(zip(texts, reasons, strict=True))
        ],
        "usage": {
            "prompt_tokens": read,
            "completion_tokens": sum(counts),
            "total_tokens": read + sum(counts),
        },
    }

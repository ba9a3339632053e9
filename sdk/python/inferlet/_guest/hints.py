"""What an author may have meant, for mistakes that Python's own words do not explain."""

from __future__ import annotations

import re

from inferlet._generated.sampler_parameters import Parameters

_SAMPLERS = "|".join(Parameters.__annotations__)

# Of an error with its class: what it looks like, and how it is mended.
_HINTS = [
    (re.compile(pattern, re.DOTALL), hint)
    for pattern, hint in (
        (
            r"(?:Type|Attribute)Error: (?!An asyncio).*[ '\"]coroutine\b",
            "write `await` before the call that gave the coroutine",
        ),
        (
            r"'Generator' object|type Generator ",
            "a generation is read by `await generation.collect_text()`, or by `async for text in"
            " generation.stream_text()`",
        ),
        (
            r"'async_generator' object|type async_generator ",
            "it is read by `async for`; a program sends its parts with `session.send`",
        ),
        (r"'(keys|Subscription)' object is not iterable", "it is read by `async for`"),
        (r"object can't be awaited", "this call is done at once: leave `await` out"),
        (
            r"An asyncio.Future, a coroutine or an awaitable is required",
            "it takes calls of `async def` functions one by one: `gather(f(1), f(2))`, or"
            " `gather(*calls)` of a list",
        ),
        (
            r"asyncio\.run\(\) cannot be called|event loop is already running",
            "`async def main` runs in a loop already: `await` the call",
        ),
        (
            rf"generate\(\) got an unexpected keyword argument '({_SAMPLERS})'",
            r"it is one of a sampler: `generate(Sampler(\1=...))`",
        ),
        (r"'Tokenizer' object is not callable", "`tokenizer.encode(text)` gives its tokens"),
        (r"'GenStep' object has no", "`output = await step.execute()` has what was generated"),
        (r"is no queue of this instance", "has its context been released?"),
        (r"type (generator|map|filter|zip|range|dict_\w+) ", "`list(...)` makes a list of it"),
        (
            r"No usable temporary directory",
            "an inferlet has no file system: keep it in variables, `io.BytesIO` or `store`",
        ),
    )
]


def hint(error: BaseException) -> str:
    """How a mistake is mended, or nothing."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    module = trace.tb_frame.f_globals.get("__name__") if trace is not None else None
    if isinstance(error, KeyError) and module == "os":
        return "an inferlet has no environment: pass it as an argument"
    text = f"{type(error).__name__}: {error}"
    for pattern, said in _HINTS:
        if found := pattern.search(text):
            return found.expand(said)
    return ""

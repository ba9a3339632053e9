"""Asynchronous function calling without the server's help: a new request at every interrupt.

Run: pie-py run inferlets/async_function_calling --entry async_naive --request "..."
As over a chat API that keeps nothing between requests (AsyncLM, section 5.5): each request computes
the KV cache of the whole context.
"""

from asynclm.calling import command
from asynclm.choices import Mode


async def main(args: list[str]) -> str:
    """Shows what happens as it happens; `--help` tells the options."""
    return await command.main(args, Mode.ASYNC_NAIVE)

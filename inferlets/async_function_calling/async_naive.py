"""Asynchronous function calling without the server's help: a new request at every interrupt.

Run: pie-py run inferlets/async_function_calling --entry async_naive --request "..." --tools @tools.json
As over a chat API that keeps nothing between requests (AsyncLM, section 5.5): the KV cache is computed anew.
"""

from asynclm.calling import command
from asynclm.choices import Mode


async def main(args: list[str]) -> str:
    """Shows what happens as it happens; `--help` tells the options."""
    return await command.main(args, Mode.ASYNC_NAIVE)

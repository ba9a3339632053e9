"""Synchronous function calling: a call, its result, the next call (AsyncLM, section 6).

Run: pie-py run inferlets/async_function_calling --entry sync --request "..." --tools @tools.json
The model ends its turn after each call.
"""

from asynclm.calling import command
from asynclm.choices import Mode


async def main(args: list[str]) -> str:
    """Shows what happens as it happens; `--help` tells the options."""
    return await command.main(args, Mode.SYNC)

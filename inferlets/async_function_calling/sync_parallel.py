"""Synchronous function calling with calls in parallel (AsyncLM, section 6).

Run: pie-py run inferlets/async_function_calling --entry sync_parallel --request "..."
The model makes all calls that are ready in one turn; the results of all come in the next.
"""

from asynclm.calling import command
from asynclm.choices import Mode


async def main(args: list[str]) -> str:
    """Shows what happens as it happens; `--help` tells the options."""
    return await command.main(args, Mode.SYNC_PARALLEL)

"""Asynchronous function calling: calls run while the model writes on (AsyncLM).

Run: pie-py run inferlets/async_function_calling --request "..." --tools @tools.json
Results are put in as interrupts, in mid-generation; see docs/async-function-calling.md.
"""

from asynclm.calling import command
from asynclm.choices import Mode


async def main(args: list[str]) -> str:
    """Shows what happens as it happens; `--help` tells the options."""
    return await command.main(args, Mode.ASYNC)

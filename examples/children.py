"""Runs an uploaded program several times at once; one that fails does not stop the others.

Run: pie-py upload examples/hello.py
     pie-py run examples/children.py -- hello Ada Grace Alan
"""

import asyncio

from inferlet import PieError, runtime


async def main(args: list[str]) -> str:
    """Launches a child for each argument and returns their results, in order."""
    program, *rest = args
    children = (runtime.launch(program, argument) for argument in rest)
    results = await asyncio.gather(*children, return_exceptions=True)
    return "\n".join(f"failed: {r.message}" if isinstance(r, PieError) else str(r) for r in results)

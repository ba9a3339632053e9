"""Greets its caller: the smallest inferlet.

Run: pie-py run examples/hello.py -- Ada
"""


async def main(args: list[str]) -> str:
    """Returns a greeting."""
    return f"Hello, {args[0] if args else 'world'}!"

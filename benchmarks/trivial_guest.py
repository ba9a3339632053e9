"""The smallest program, whose launch is all that it costs."""


async def main(args: list[str]) -> str:
    """Greets."""
    return "hello"

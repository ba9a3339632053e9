"""The times that the server has learned of tools, else 7 seconds."""

from asynclm.tools.estimates import learned
from asynclm.tools.tool import Tool


async def nothing(arguments):
    return None


async def main(args: list[str]) -> list[float]:
    return [tool.seconds for tool in await learned(Tool(n, nothing, seconds=7.0) for n in args)]

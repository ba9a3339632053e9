"""Generations with function calls: asynchronous ones, and the synchronous ways to compare them with.

::

    tools = await load_tools(text, ClientLink())
    record = await Generation(Model.load(), tools, Options(mode=Mode.ASYNC)).run("What is ...?")
    print(record.text)

`command.main` is the program behind `inferlets/async_function_calling`.
"""

from inferlet.calling.command import main
from inferlet.calling.generation import Generation, Inbox, Options
from inferlet.calling.prompts import Mode, Style
from inferlet.calling.record import CallRecord, Record

__all__ = ["CallRecord", "Generation", "Inbox", "Mode", "Options", "Record", "Style", "main"]

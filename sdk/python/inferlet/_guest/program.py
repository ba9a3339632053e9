"""Runs a program, and turns what becomes of it into a result or an error text."""

from __future__ import annotations

import asyncio
import gc
import inspect
import json
import sys
import traceback
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from inferlet._guest.hints import hint
from inferlet._guest.modules import ModuleFinder, Program, own_files
from inferlet._guest.options import SEVERAL, listed, parse, signature, wants_options
from inferlet._guest.sandbox import Finished
from inferlet._json import dumps
from inferlet._loop import HostLoop

ASKS_FOR_OPTIONS = ["--pie-options"]  # as only argument: what `main` takes, for a form
MODULE = "__inferlet__"  # what `__name__` is in the program: not "__main__", it is not a script


class ProgramError(Exception):
    """The program failed; the text is for its user."""


def prepare(file: str, text: str) -> tuple[Program, bool]:
    """As `Program.compiled`, with errors for the program's user. Raises ProgramError: if a module
    is not Python.
    """
    try:
        return Program.compiled(file, text)
    except (SyntaxError, ValueError) as error:
        raise ProgramError("".join(traceback.format_exception_only(error)).rstrip()) from None


def run(program: Program, args: list[str]) -> str:
    """Executes a program's main module and the function `main` in it; returns its result as text.
    Raises ProgramError: if it fails.
    """
    module = ModuleType(MODULE)
    module.__file__ = program.file
    sys.modules[MODULE] = sys.modules["__main__"] = module
    sys.meta_path.insert(0, ModuleFinder(program))
    try:
        exec(program.code(program.main), module.__dict__)
        main = module.__dict__.get("main")
        if not callable(main):
            raise ProgramError(
                f"{program.file} has no function `main`; write `async def main(args: list[str]) ->"
                " str:`"
            )
        if args == ASKS_FOR_OPTIONS:
            return json.dumps(listed(main))
        return as_text(_call(main, args))
    except ProgramError:
        raise
    except Finished as finished:
        return finished.text
    except SystemExit as leaving:
        if leaving.code is None or leaving.code == 0:
            return ""
        if isinstance(leaving.code, str):
            raise ProgramError(leaving.code) from None
        raise ProgramError(f"SystemExit: the program exited with status {leaving.code}") from None
    except BaseException as error:  # noqa: BLE001  every fault is the program's
        raise ProgramError(describe(error)) from None


def _call(main: Callable[..., Any], args: list[str]) -> Any:
    """Calls `main` with what it wants: nothing, a dict if it says `input`, options, or a list."""
    takes = signature(main)
    parameters = list(takes.parameters.values())
    if not parameters:
        answer = main()
    elif parameters[0].name == "input":
        answer = main(as_input(args))
    elif wants_options(parameters):
        given = parse(main, takes, args)
        answer = main(*given.args, **given.kwargs)
    elif parameters[0].kind is SEVERAL:
        answer = main(*args)
    else:
        answer = main(list(args))
    if not inspect.isawaitable(answer):
        return answer
    loop = HostLoop()
    try:
        return loop.run_until_complete(answer)
    finally:
        if not loop.is_running():
            _cancel_rest(loop)
            if loop.tasks > 1:
                gc.collect(0)  # tells of failed tasks that were not awaited


def _cancel_rest(loop: HostLoop) -> None:
    """Cancels the tasks that `main` left behind, so that their `finally` blocks run."""
    rest = asyncio.all_tasks(loop)
    for task in rest:
        task.cancel()
    if rest:
        loop.run_until_complete(asyncio.gather(*rest, return_exceptions=True))
    if loop._asyncgens:
        loop.run_until_complete(loop.shutdown_asyncgens())


def as_input(args: Sequence[str]) -> dict[str, Any]:
    """Arguments as the dict that programs of the real Pie take.

    `--input JSON` gives many keys at once; `--key value`, `--key=value` and `key=value` give one,
    whose value is JSON if it reads as such and text otherwise; `--key` alone is true.
    """
    found: dict[str, Any] = {}
    rest = list(args)
    while rest:
        word = rest.pop(0)
        dashed = word.startswith("--")
        key, separator, value = word.removeprefix("--").partition("=")
        if not dashed and not separator:
            raise ProgramError(
                f"usage: argument {word!r} is not KEY=VALUE, --KEY VALUE or --input JSON"
            )
        if dashed and not separator:
            value = rest.pop(0) if rest and not rest[0].startswith("--") else "true"
        if dashed and key == "input":
            found.update(_input_object(value))
        else:
            found[key.replace("-", "_")] = _json_or_text(value)
    return found


def _input_object(text: str) -> dict[str, Any]:
    try:
        parsed = json.loads(text)
    except ValueError as error:
        raise ProgramError(f"usage: --input is not JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise ProgramError("usage: --input must be a JSON object, {...}")
    return parsed


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def as_text(value: Any) -> str:
    """A result as text: nothing, a string as it is, anything else as JSON."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode()
    if inspect.iscoroutine(value):
        raise ProgramError(
            f"main returned the coroutine {value.__qualname__}: write `await` before the call"
        )
    try:
        return dumps(value)
    except (TypeError, ValueError) as error:
        how = f"; {hint(error)}".removesuffix("; ")
        raise ProgramError(
            f"main returned a {type(value).__name__}, which is neither text nor JSON: {error}{how}"
        ) from None


def describe(error: BaseException) -> str:
    """An exception as a traceback that shows the program's own frames."""
    if isinstance(error, MemoryError):
        return _describe_memory_error(error)
    try:
        if how := hint(error):
            error.add_note(how)
        shown = traceback.TracebackException.from_exception(error)
        _keep_own_frames(shown)
        return "".join(shown.format()).rstrip()
    except RecursionError:
        return f"{type(error).__name__}: {error}"


def _describe_memory_error(error: MemoryError) -> str:
    """Where it happened, made with little memory: a whole traceback may not fit any more."""
    place = ""
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_filename in own_files:
            place = f'File "{code.co_filename}", line {trace.tb_lineno}, in {code.co_name}\n'
        trace = trace.tb_next
    error.__traceback__ = None  # frees what the frames hold
    return (
        f"{place}MemoryError: the inferlet's memory is used up, or its input is nested too deeply"
    )


def _keep_own_frames(shown: traceback.TracebackException) -> None:
    own = [frame for frame in shown.stack if frame.filename in own_files]
    if own:
        shown.stack[:] = own
    for other in (shown.__cause__, shown.__context__, *(shown.exceptions or ())):
        if other is not None:
            _keep_own_frames(other)

"""The chat templates of a checkpoint, rendered as `transformers` renders them, byte for byte."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import jinja2
import jinja2.meta
import jinja2.utils

from pie_control.errors import exceeded, invalid, unsupported
from pie_control.models.control_tokens import without_control_tokens
from pie_control.models.template_sandbox import (
    MAX_SOURCE,
    TemplateEnvironment,
    TemplateTooSlow,
    light,
    time_limit,
)
from pie_py.models.checkpoint_files import checkpoint_file, read_object, read_text

INLINE_SECONDS = 0.005  # on the control thread
LONGEST_SECONDS = 2.0  # in a thread
_REASONING = ("reasoning_content", "thinking", "reasoning")  # names of it, the standard one first

# What a template raises that is given other messages than it was written for.
_SENSELESS_MESSAGES = (
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    AttributeError,
    AssertionError,
    MemoryError,
    jinja2.TemplateError,
)


class ChatTemplates:
    """The templates that a folder has, by name; most have one, `default`."""

    def __init__(
        self,
        sources: Mapping[str, str],
        special_tokens: Mapping[str, str],
        now: Callable[[], datetime] = datetime.now,
        broken: Callable[[str], str] = str,
    ) -> None:
        """Compiles none of them yet. The special tokens, `bos_token` and the like, are what
        templates may write, as is the local time; `broken` breaks the control tokens in a text.
        """
        self.sources = sources
        self._special_tokens = special_tokens
        self._now = now
        self._broken = broken
        self._compiled: dict[str, jinja2.Template] = {}

    @cached_property
    def arguments(self) -> list[str]:
        """Names that the templates read beside messages, such as `tools` and `enable_thinking`;
        none of a template that cannot be read.
        """
        found: set[str] = set()
        for source in self.sources.values():
            with suppress(jinja2.TemplateError, RecursionError, SyntaxError):
                found |= jinja2.meta.find_undeclared_variables(self._environment.parse(source))
        own = {"messages", "add_generation_prompt", *self._special_tokens}
        known = found - own - self._environment.globals.keys()
        return sorted(name for name in known if not name.startswith("_"))

    def render(self, request: str, add_generation_prompt: bool, seconds: float) -> str:
        """Renders a conversation, within so many seconds.

        The request is a JSON list of messages, or an object of the template's arguments, `messages`
        among them; `chat_template` names one of several templates. With `control_tokens` true,
        control tokens in messages of users and tools are what they say; otherwise they are text.

        Raises:
            ApiError: `unsupported` without a template, `invalid-argument` for what it refuses,
                `limit-exceeded` if the time was too short.
        """
        if not self.sources:
            raise unsupported("the model has no chat template; fill plain text instead")
        try:
            messages, arguments = _read(request)
            template = self._find(arguments.pop("chat_template", None), arguments.get("tools"))
            if arguments.pop("control_tokens", None) is not True:
                messages = [without_control_tokens(m, self._broken) for m in messages]
            with time_limit(seconds):
                text = template.render(
                    {
                        "tools": None,
                        "documents": None,
                        **self._special_tokens,
                        **arguments,
                        "messages": [_Message(message) for message in messages],
                        "add_generation_prompt": add_generation_prompt,
                    }
                )
            text.encode()  # JSON can name halves of characters, which no text has
            return text
        except TemplateTooSlow:
            raise exceeded(f"the chat template is not rendered after {seconds:g} s") from None
        except RecursionError:
            raise invalid("chat messages: nested too deep") from None
        except _SENSELESS_MESSAGES as error:
            raise invalid(f"chat messages: {error}") from None

    def _find(self, name: Any, tools: Any) -> jinja2.Template:
        """The template that is asked for, or the one for tools if there are any, or the default."""
        if name is None:
            name = "tool_use" if tools is not None and "tool_use" in self.sources else "default"
        if name not in self.sources:
            raise ValueError(
                f"the model has no chat template {name!r}; `chat_template` names one of:"
                f" {', '.join(sorted(self.sources))}"
            )
        if name not in self._compiled:
            try:
                self._compiled[name] = self._environment.from_string(self.sources[name])
            except (jinja2.TemplateError, RecursionError, SyntaxError) as error:
                where = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
                if isinstance(error, jinja2.TemplateSyntaxError):
                    where = f", line {error.lineno}"
                raise unsupported(f"the model's chat template {name!r}{where}: {error}") from None
        return self._compiled[name]

    @cached_property
    def _environment(self) -> TemplateEnvironment:
        environment = TemplateEnvironment()
        environment.filters["tojson"] = _to_json
        environment.tests["none"] = _is_none
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = self._strftime_now
        environment.globals["namespace"] = _Namespace
        return environment

    def _strftime_now(self, format: str) -> str:  # noqa: A002 - templates may name it
        return self._now().strftime(format)


def read_sources(folder: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    """The texts of a folder's templates, by name.

    The choice is that of `transformers`: a processor's own template, if the model has a processor,
    then files, then tokenizer_config.json. Where it finds none, chat_template.json counts all the
    same.

    Raises:
        ValueError: for a template that is no text, or too long.
        BadFile: for a file that is no JSON object, or not in the folder.
    """
    sources = next(filter(None, _choices(folder, settings)), {})
    for name, source in sources.items():
        if not isinstance(source, str) or len(source) > MAX_SOURCE:
            raise ValueError(
                f"chat template {name!r} is no text of at most {MAX_SOURCE} characters"
            )
    return sources


def _choices(folder: Path, settings: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Templates by name, as each file has them; what counts most comes first."""
    processor, alone = (
        read_object(folder, f"{name}.json") for name in ("processor_config", "chat_template")
    )
    if processor is not None or checkpoint_file(folder, "preprocessor_config.json"):
        yield _named(processor or {})
        yield _named(alone or {})
    yield _of_files(folder)
    yield _named(settings)
    yield _named(alone or {})


def _of_files(folder: Path) -> dict[str, str]:
    more = "additional_chat_templates"
    files = {file.stem: f"{more}/{file.name}" for file in sorted((folder / more).glob("*.jinja"))}
    files["default"] = "chat_template.jinja"
    texts = {name: read_text(folder, file) for name, file in files.items()}
    return {name: text for name, text in texts.items() if text is not None}


def _named(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The templates that a file of settings holds, by name."""
    found = settings.get("chat_template")
    if isinstance(found, list):
        return {entry["name"]: entry["template"] for entry in found}
    return found if isinstance(found, dict) else {} if found is None else {"default": found}


def _read(request: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Messages and the other arguments."""
    parsed = json.loads(request)
    arguments = dict(parsed) if isinstance(parsed, dict) else {"messages": parsed}
    messages = arguments.pop("messages", None)
    if not isinstance(messages, list) or not all(isinstance(m, dict) for m in messages):
        raise ValueError("a list of objects is wanted, or an object with one as `messages`")
    if not messages:
        raise ValueError("the list is empty")
    for name in ("tools", "documents"):
        given = arguments.get(name)
        if given is not None and not (
            isinstance(given, list) and all(isinstance(each, dict) for each in given)
        ):
            raise ValueError(f"`{name}` is a list of objects")
    if "add_generation_prompt" in arguments:
        raise ValueError("`add_generation_prompt` is an argument of the call")
    return [_normal(message) for message in messages], arguments


def _normal(message: dict[str, Any]) -> dict[str, Any]:
    """A message with its reasoning under the names templates read."""
    given = (message[name] for name in _REASONING if message.get(name) is not None)
    reasoning = next(given, None)
    if reasoning is not None:
        message = {k: v for k, v in message.items() if v is not None or k not in _REASONING}
        message = {"thinking": reasoning, **message, "reasoning_content": reasoning}
    return message


class _Message(dict[str, Any]):
    """A message without nulls, as `transformers` has it; templates that ask are told it is none."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        super().__init__((key, value) for key, value in given.items() if value is not None)
        self._nulls = given.keys() - self.keys()

    def __missing__(self, key: str) -> Any:
        if key in self._nulls:
            return _Null(name=key)
        raise KeyError(key)


class _Null(jinja2.Undefined):
    """A value that a message gives as null."""

    __hash__ = jinja2.Undefined.__hash__

    def __eq__(self, other: object) -> bool:
        return other is None or super().__eq__(other)


def _is_none(value: Any) -> bool:
    return value is None or isinstance(value, _Null)


class _Namespace(jinja2.utils.Namespace):
    """A template's variables that outlive a loop, without Python's own names."""

    def __init__(*args: Any, **named: Any) -> None:
        self, *given = args  # templates may give a variable called `self`
        for name in (values := dict(*given, **named)):
            _check_name(name)
        jinja2.utils.Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: str) -> None:
    if name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace cannot hold {name!r}")


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as `transformers` writes it: Jinja's own filter escapes HTML."""
    if (isinstance(indent, int) and indent > 64) or (isinstance(indent, str) and len(indent) > 64):
        raise ValueError("tojson: an indent of more than 64 characters")
    return json.dumps(
        light(value),
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)

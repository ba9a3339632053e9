"""The next message of a conversation, whatever API has asked for it."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Collection, Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from msgspec.structs import replace

from pie_gateway.backend.catalog import ModelName
from pie_gateway.backend.generation import Generation
from pie_gateway.backend.job import MARK, End, Grammar, Job, Piece, Prompt
from pie_gateway.backend.turns import Turns
from pie_gateway.backend.vocabulary import Vocabulary
from pie_gateway.dialects import Dialect, dialect_of, required_calls
from pie_gateway.dialects.channels import splitter_of
from pie_gateway.dialects.forms import Call
from pie_gateway.dialects.leads import leads
from pie_gateway.dialects.prompted import as_plain_text, text_or_calls
from pie_gateway.dialects.splitter import Said
from pie_gateway.dialects.written import Arguments
from pie_gateway.http.admission import Exchange
from pie_gateway.openai.conversation import render, text_of, with_ids
from pie_gateway.openai.sampling import fill_ends, grammar, hinted, most_tokens, sampling
from pie_gateway.problems import unsupported, wrong
from pie_gateway.schemas.chat import AllowedTools, ChatRequest, NamedTool, Tool
from pie_gateway.schemas.messages import AssistantMessage, ToolMessage
from pie_py.config.gateway import Route


@dataclass(frozen=True, slots=True)
class Part:
    """One event of a choice, and what is said with it."""

    event: Piece | End  # an end has the reason of the choice
    said: list[Said]


@dataclass(frozen=True)
class Talk:
    """One request for the next message, checked and ready: its answer's parts, and no more."""

    model: str  # the answer names it so
    job: Job
    generation: Generation  # of the job
    words: Vocabulary
    dialect: Dialect  # how the model writes calls and thoughts
    must_call: bool = False
    one_call: bool = False  # further ones are left out
    turns: Turns | None = None  # are told how this one ends; None if it has no tools
    session: str | None = None  # the conversation's name, if it has one

    async def prompt(self) -> Prompt:
        """The prompt alone; what follows is given up. Raises `Problem`: the instance fails."""
        async with self.generation as generation:
            return await generation.prompt(alone=True)

    async def parts(self, *, pieces: bool = False) -> AsyncGenerator[Prompt | Part, None]:
        """The prompt, and the parts of all choices, of calls `pieces` as they are written, or each
        whole. Raises `Problem`: the instance fails.
        """
        async with self.generation as generation:
            prompt = await generation.prompt()
            yield prompt
            splitters: dict[int, _TextSplitter] = {}
            async for each in generation.events():
                if each.choice not in splitters:
                    splitters[each.choice] = _TextSplitter(self, prompt.tail, pieces)
                splitter = splitters[each.choice]
                part = splitter.part(each)
                if isinstance(each, End) and self.turns is not None:
                    calls = {call.id: call.name for call in splitter.calls}
                    self.turns.ended(generation.id, calls, self.session)
                yield part


class _TextSplitter:
    """Parts the text of one choice, and knows why it has ended."""

    def __init__(self, talk: Talk, tail: str, pieces: bool) -> None:
        self._splitter = splitter_of(
            talk.dialect, tail, talk.job.continued, must_call=talk.must_call, pieces=pieces
        )
        self._one_call = talk.one_call
        self._leaves_out = False
        self.calls: list[Call] = []

    def part(self, event: Piece | End) -> Part:
        """An event, and what is certain by now; of an end the rest."""
        if isinstance(event, Piece):
            return Part(event, self._allowed(self._splitter.feed(event.text)))
        said = self._allowed(self._splitter.finish(cut=event.reason == "length"))
        if self.calls and event.reason == "stop":
            event = replace(event, reason="tool_calls")
        return Part(event, said)

    def _allowed(self, found: list[Said]) -> list[Said]:
        allowed = []
        for said in found:
            if isinstance(said, Call | Arguments):
                if isinstance(said, Call):
                    self._leaves_out = self._one_call and bool(self.calls)
                    self.calls += [] if self._leaves_out else [said]
                if self._leaves_out:
                    continue
            elif not (text := said.text.replace(MARK, "")):
                continue
            else:
                said = type(said)(text)
            allowed.append(said)
        return allowed


async def prepare(
    exchange: Exchange,
    asked: ChatRequest,
    route: Route = "chat",
    effort_field: str | None = "reasoning_effort",
    *,
    clamp: bool = False,
    counts: bool = False,
) -> Talk:
    """Checks a request, in the words of OpenAI's chat but for its own name of `reasoning_effort`,
    None if that is a hint. `clamp` tells whether `max_tokens` beyond the context means up to its
    end, as its clients rely on; `counts` whether only the prompt is wanted, however long it is.
    Raises `Problem`: 400 or 404, naming what is wrong.
    """
    backend = exchange.backend
    name = await backend.catalog.find(asked.model)
    model = await backend.catalog.describe(name.model)
    words = await backend.vocabulary(name.model)

    def made() -> tuple[Job, list[bytes], Dialect]:
        own = backend.is_own(route)
        job, images, dialect = _job(asked, name, model, words, effort_field, own=own)
        job.clamp, job.counts = clamp, counts
        if counts:
            job.max_tokens = 1
        return job, images, dialect

    job, images, dialect = await exchange.by_size(made)
    hints = hinted(asked, job.choices)
    generation = await exchange.generation(route, job, images, asked.user, **hints)
    turns, session = backend.turns, _session(asked)
    if not counts:
        turns.begins(_results(asked), session)
    must_call, one_call = _must_call(asked), asked.parallel_tool_calls is False
    told = turns if asked.tools else None
    return Talk(name.id, job, generation, words, dialect, must_call, one_call, told, session)


def _session(asked: ChatRequest) -> str | None:
    """The name of a conversation, of the fields that may have one."""
    given = asked.nvext or {}
    hints = [given.get(name) for name in ("agent_hints", "session_control", "agent_context")]
    names = [each.get("session_id") for each in (given, *hints) if isinstance(each, dict)]
    found = (asked.session_id, *names, asked.prompt_cache_key)
    return next((each for each in found if each and isinstance(each, str)), None)


def _results(asked: ChatRequest) -> list[str]:
    since = takewhile(lambda each: not isinstance(each, AssistantMessage), asked.messages[::-1])
    results = (each for each in since if isinstance(each, ToolMessage))
    return [each.tool_call_id for each in results if each.tool_call_id]


def _job(
    asked: ChatRequest,
    name: ModelName,
    model: dict[str, Any],
    words: Vocabulary,
    effort_field: str | None,
    *,
    own: bool,
) -> tuple[Job, list[bytes], Dialect]:
    """The job of a request, its images, and how its model writes. `own` tells whether it is
    served by the library's program. Raises as `prepare`.
    """
    if asked.add_special_tokens:
        raise unsupported("add_special_tokens", "the chat template writes them")
    if asked.top_logprobs and not asked.logprobs:
        raise unsupported("top_logprobs", "it goes with `logprobs: true`")
    known = _functions(asked, name.id)
    may_call = _may_call(asked, known)
    tools, tells = [_described(tool) for tool in known], "tools" in words.arguments
    messages, images = render(asked.messages)
    if images and model["image_place"] is None:
        raise wrong("messages", f"{name.model} reads no images")
    arguments = template_arguments(asked, words.arguments, effort_field)
    form, continued = _grammar(asked, may_call), _continued(asked)
    dialect = dialect_of(
        words,
        {each.function.name: each.function.parameters or {} for each in may_call},
        tells=tells,
        marked=not own,
        held=form is not None,
    )
    calls, never = dialect.family.calls, asked.tool_choice == "none"
    if never and (calls is None or dialect.family.bare):
        tools = []  # nothing keeps it from calls but not to know of them
    if not tells:
        messages = as_plain_text(messages, tools)
    elif dialect.family.id_length:
        messages = with_ids(messages, dialect.family.id_length)
    if tools and tells:
        arguments["tools"] = tools
    if may_call and not tells and form is None:
        parallel = asked.parallel_tool_calls is not False
        form = text_or_calls(_calls(may_call, parallel=parallel))
    job = Job(
        model=name.model,
        adapter=name.adapter,
        sampler=sampling(asked, words, asked.top_logprobs or 0),
        messages=json.dumps(messages, ensure_ascii=False),
        template=json.dumps(arguments, ensure_ascii=False) if arguments else None,
        cue=asked.add_generation_prompt is not False and continued is None,
        continued=continued,
        images=len(images),
        choices=asked.n or 1,
        max_tokens=most_tokens(asked.max_completion_tokens, asked.max_tokens),
        logprobs=bool(asked.logprobs),
        ids=bool(asked.return_token_ids),
        stream=bool(asked.stream),
        marks=[*dialect.marks.items()],
        grammar=form,
    )
    if form is not None:
        stops, thinks = model["stop_tokens"], _thinks(asked, arguments)
        job.leads = leads(dialect, words, stops, continued, thinks=thinks)
    fill_ends(job, asked, model, words, [*dialect.marks.values()])
    if tools and never and calls is not None:
        job.bad_words = [*job.bad_words, calls.begin]
    return job, images, dialect


def _continued(asked: ChatRequest) -> str | None:
    """The end of the last message, if it is to go on. Raises `Problem`: 400 if it cannot."""
    if not asked.continue_final_message:
        return None
    if asked.add_generation_prompt:
        raise unsupported("continue_final_message", "`add_generation_prompt` begins another one")
    last = asked.messages[-1]
    if not isinstance(last, AssistantMessage) or last.tool_calls or not last.content:
        raise unsupported("continue_final_message", "the last message is no text of the assistant")
    return last.content if isinstance(last.content, str) else text_of(last.content)


def _must_call(asked: ChatRequest) -> bool:
    choice = asked.tool_choice
    if isinstance(choice, AllowedTools):
        return choice.allowed_tools.mode == "required"
    return choice in ("required", "any") or isinstance(choice, NamedTool)


def _may_call(asked: ChatRequest, known: list[Tool]) -> list[Tool]:
    """The functions that may be called. Raises `Problem`: 400 if the choice is none of them."""
    choice = asked.tool_choice
    if not known and choice not in (None, "none", "auto"):
        raise unsupported("tool_choice", "there are no functions among `tools`")
    if choice == "none":
        return []
    if not isinstance(choice, NamedTool | AllowedTools):
        return known
    named = [choice] if isinstance(choice, NamedTool) else choice.allowed_tools.tools
    names = [each.function.name for each in named]
    if unknown := set(names) - {tool.function.name for tool in known}:
        raise unsupported("tool_choice", f"no function is called {min(unknown)[:100]!r}")
    return [tool for tool in known if tool.function.name in names]


def _functions(asked: ChatRequest, model: str) -> list[Tool]:
    """The functions, which the client runs. Raises `Problem`: 400 if the server is to run one."""
    functions: list[Tool] = []
    for at, tool in enumerate(asked.tools or []):
        if not isinstance(tool, Tool) or (tool.run, tool.seconds, tool.timeout) != (None,) * 3:
            raise unsupported(
                f"tools[{at}]",
                f"only asynchronous calls run on the server: ask for the model async/{model}",
            )
        functions.append(tool)
    return functions


def _described(tool: Tool) -> dict[str, Any]:
    function = tool.function
    described = {
        "name": function.name,
        "description": function.description or "",
        "parameters": function.parameters or {"type": "object", "properties": {}},
    }
    return {"type": "function", "function": described}


def _grammar(asked: ChatRequest, may_call: list[Tool]) -> Grammar | None:
    """The form of the text: a list of calls, or what the request says. What its messages
    look like (`response_format`) goes with a call that has to be made: there is no message then.
    """
    if not _must_call(asked):
        return grammar(asked)
    if grammar(replace(asked, response_format=None)) is not None:
        raise unsupported(
            "tool_choice", "a text held to a form does not go with a call that has to be made"
        )
    once = isinstance(asked.tool_choice, NamedTool) or asked.parallel_tool_calls is False
    return _calls(may_call, parallel=not once)


def _calls(tools: list[Tool], *, parallel: bool) -> Grammar:
    """Calls of these functions; `strict: false` leaves the arguments of one open. Where none asks
    to be strict, a keyword that no grammar has refuses no other tools: strangers wrote them.
    """
    functions = []
    for function in (tool.function for tool in tools):
        schema = function.parameters or {}
        if function.strict is False:
            schema = {"additionalProperties": True, **schema}
        functions.append((function.name, schema))
    lenient = not any(tool.function.strict for tool in tools)
    return required_calls(functions, parallel=parallel, lenient=lenient)


def _thinks(asked: ChatRequest, arguments: Mapping[str, Any]) -> bool:
    """True if a model that can think may: `arguments` are those of the chat template."""
    given = {**(asked.chat_template_kwargs or {}), **arguments}
    off = (given.get(name) is False for name in THINKS)
    return asked.reasoning_effort != "none" and not any(off)


THINKS = ("enable_thinking", "thinking")  # arguments of chat templates
_OWN = {"messages", "tools", "add_generation_prompt", "chat_template"}  # of other fields


def template_arguments(
    asked: ChatRequest, known: Collection[str], effort_field: str | None
) -> dict[str, Any]:
    """The template's arguments by name, of what it is known to read; `effort_field` is the
    request's own name of `reasoning_effort`, None if that is a hint. Raises `Problem`: 400 naming
    what the template does not read, and so would have no effect.
    """
    found = dict(asked.chat_template_kwargs or {})
    for name, value in [*found.items()]:
        if name in THINKS and value is False and not {*THINKS, "reasoning_effort"} & {*known}:
            del found[name]  # it does not anyway
        elif name in _OWN or name not in known:
            raise unsupported(f"chat_template_kwargs.{name}"[:200], _reads(known))
    effort = asked.reasoning_effort
    if effort is None:
        return found
    if "reasoning_effort" in known:
        if effort != "none":
            found.setdefault("reasoning_effort", effort)
    elif "enable_thinking" in known:
        found.setdefault("enable_thinking", effort not in ("none", "minimal"))
    elif effort not in ("none", "medium") and effort_field is not None:
        raise unsupported(effort_field, _reads(known))
    return found


def _reads(known: Collection[str]) -> str:
    names = ", ".join(sorted(name for name in known if name not in _OWN)[:20])
    return f"the model's chat template reads {names or 'nothing but messages'}"

"""`POST /v1/completions`, whose prompts are texts and lists of token ids."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Mapping
from typing import Any, TypeAlias

import msgspec
from msgspec import UNSET
from starlette.responses import Response

from pie_gateway.backend.catalog import ModelName
from pie_gateway.backend.generation import merged
from pie_gateway.backend.job import End, Event, Job, Piece
from pie_gateway.backend.job import Prompt as PromptRead
from pie_gateway.backend.vocabulary import Vocabulary
from pie_gateway.http.admission import Exchange
from pie_gateway.http.answers import DONE, event, json_response, stream_response, while_asked
from pie_gateway.openai.choices import Whole, completion_logprobs, echoed_logprobs, prompt_logprobs
from pie_gateway.openai.infill import fill_in
from pie_gateway.openai.sampling import (
    fill_ends,
    grammar,
    hinted,
    most_tokens,
    sampling,
    stream_options,
)
from pie_gateway.problems import unsupported, wrong
from pie_gateway.schemas.completions import (
    CompletionAnswer,
    CompletionChoice,
    CompletionLogprobs,
    CompletionRequest,
)
from pie_gateway.schemas.sampling import MAX_CHOICES, StreamOptions, Usage, fingerprint, usage

DEFAULT_TOKENS = 16
Prompt: TypeAlias = str | list[int]


async def completions(exchange: Exchange) -> Response:
    """The texts that follow prompts."""
    asked = await exchange.read(CompletionRequest)
    usage_told = stream_options(asked)
    best_of, choices = asked.best_of or asked.n or 1, asked.n or 1
    if best_of < choices:
        raise unsupported("best_of", f"{best_of} is fewer than `n`, {choices}")
    if asked.stream and best_of > choices:
        raise unsupported("best_of", "the best is not known while texts are streamed")
    if asked.max_tokens == 0 and not asked.echo:
        raise unsupported("max_tokens", "0 goes with `echo`")
    if asked.suffix and asked.echo:
        raise unsupported("echo", "the text stands between `prompt` and `suffix`")
    if asked.truncate_prompt_tokens is not None and asked.echo:
        raise unsupported("truncate_prompt_tokens", "it does not go with `echo`")
    backend = exchange.backend
    name = await backend.catalog.find(asked.model)
    asked.model = name.id
    model = await backend.catalog.describe(name.model)
    words = await backend.vocabulary(name.model)

    def made() -> _Answer:
        answer = _Answer(exchange, asked, words)
        answer.jobs = [_job(asked, name, prompt, model, words) for prompt in answer.prompts]
        if asked.suffix:
            fill_in(answer.jobs, asked.suffix, name.id, model["stop_tokens"], words)
        return answer

    answer = await exchange.by_size(made)
    if asked.stream:
        return stream_response(exchange, answer.stream(usage_told))
    return json_response(await while_asked(exchange, answer.whole))


def _job(
    asked: CompletionRequest,
    name: ModelName,
    prompt: Prompt,
    model: Mapping[str, Any],
    words: Vocabulary,
) -> Job:
    words.check("prompt", prompt if isinstance(prompt, list) else (), model["vocab_size"])
    choices = asked.best_of or asked.n or 1
    picks = choices > (asked.n or 1)
    most = asked.max_tokens and most_tokens(asked.max_tokens)
    if asked.max_tokens is None:
        most = DEFAULT_TOKENS
    job = Job(
        model=name.model,
        adapter=name.adapter,
        sampler=sampling(asked, words, asked.logprobs or 0),
        text=prompt if isinstance(prompt, str) else None,
        tokens=None if isinstance(prompt, str) else prompt,
        choices=choices,
        max_tokens=most,
        logprobs=asked.logprobs is not None or picks,
        prompt_logprobs=asked.logprobs if asked.echo else None,
        bare=asked.add_special_tokens is False,
        ids=bool(asked.return_token_ids),
        stream=bool(asked.stream),
        grammar=grammar(asked),
    )
    if asked.echo and asked.logprobs is not None and most == 1:
        # Who scores a prompt so, as lm-eval does, takes the last log-probability off, be it of the
        # text's end or not.
        asked = msgspec.structs.replace(asked, ignore_eos=True)
    fill_ends(job, asked, model, words)
    return job


class _Answer:
    def __init__(self, exchange: Exchange, asked: CompletionRequest, words: Vocabulary) -> None:
        self.prompts = prompts_of(asked.prompt, "prompt", MAX_CHOICES)
        self.jobs: list[Job] = []  # one for each prompt
        self._exchange = exchange
        self._asked = asked
        self._words = words
        self._created = int(time.time())
        self._read: dict[int, PromptRead] = {}  # by prompt
        self._cached = 0  # tokens of prompts
        self._tokens = 0
        if len(self.prompts) * (asked.best_of or asked.n or 1) > MAX_CHOICES:
            raise unsupported("n", f"at most {MAX_CHOICES} texts for all prompts together")

    async def _events(self) -> AsyncGenerator[Event, None]:
        """The events of all prompts; counts tokens."""
        tag = self._asked.user
        generations = [
            await self._exchange.generation(
                "completions", job, tag=tag, **hinted(self._asked, job.choices)
            )
            for job in self.jobs
        ]
        async for number, each in merged(generations, self.jobs[0].choices):
            match each:
                case PromptRead():
                    self._read[number] = each
                case Piece(tokens=tokens):
                    self._tokens += tokens
                case End(cached=cached):
                    self._cached += cached
            yield each

    async def whole(self) -> CompletionAnswer:
        """All texts at once; of `best_of` the likeliest."""
        each_has, wanted = self.jobs[0].choices, self._asked.n or 1
        wholes = [Whole() for _ in range(each_has * len(self.jobs))]
        async for each in self._events():
            if not isinstance(each, PromptRead):
                wholes[each.choice].add(each)
        choices: list[CompletionChoice] = []
        for number in range(len(self.jobs)):
            group = wholes[number * each_has : (number + 1) * each_has]
            if each_has > wanted:
                group = sorted(group, key=lambda whole: -whole.mean_logprob)[:wanted]
            for whole in group:
                choices.append(self._choice(len(choices), number, whole))
        answer = self._answer(choices)
        answer.usage = self._usage()
        return answer

    def _usage(self) -> Usage:
        prompts = sum(read.tokens for read in self._read.values())
        return usage(prompts, self._tokens, self._cached)

    def _choice(self, at: int, number: int, whole: Whole) -> CompletionChoice:
        echo = self._echo(number)
        choice = CompletionChoice(at, echo + whole.text, whole.reason, stop_reason=whole.stop)
        choice.logprobs = self._logprobs(whole.piece, len(echo))
        if echo and choice.logprobs is not None:
            choice.logprobs = self._echoed_logprobs(number).followed_by(choice.logprobs)
        if self._asked.return_token_ids:
            choice.token_ids, choice.prompt_token_ids = whole.ids, self._read[number].ids
        if self._asked.prompt_logprobs is not None:
            read = self._read[number]
            choice.prompt_logprobs = prompt_logprobs(read, self._words, self._asked.prompt_logprobs)
        return choice

    async def stream(self, told: StreamOptions) -> AsyncGenerator[bytes, None]:
        lengths: dict[int, int] = {}  # characters of choices so far
        async for each in self._events():
            if isinstance(each, PromptRead):
                continue
            parts = []
            if is_first := each.choice not in lengths:
                lengths[each.choice] = 0
                if self._asked.echo:
                    parts.append(self._echoed(each.choice, lengths))
            parts.append(self._part(each, lengths))
            if is_first and self._asked.return_token_ids:
                parts[0].prompt_token_ids = self._read[self._number(each.choice)].ids
            for part in parts:
                answer = self._answer([part])
                if told.continuous_usage_stats:
                    answer.usage = self._usage()
                yield event(answer)
        if told.include_usage:
            last = self._answer([])
            last.usage = self._usage()
            yield event(last)
        yield DONE

    def _number(self, choice: int) -> int:
        """Of the prompt of a choice."""
        return choice // self.jobs[0].choices

    def _echoed(self, choice: int, lengths: dict[int, int]) -> CompletionChoice:
        number = self._number(choice)
        part = CompletionChoice(choice, self._echo(number))
        if self._asked.logprobs is not None:
            part.logprobs = self._echoed_logprobs(number)
        lengths[choice] = len(part.text)
        return part

    def _part(self, each: Piece | End, lengths: dict[int, int]) -> CompletionChoice:
        if isinstance(each, End):
            return CompletionChoice(each.choice, "", each.reason, stop_reason=each.stop)
        so_far = lengths[each.choice]
        part = CompletionChoice(each.choice, each.text, logprobs=self._logprobs(each, so_far))
        if self._asked.return_token_ids:
            part.token_ids = each.ids
        lengths[each.choice] = so_far + len(each.text)
        return part

    def _logprobs(self, piece: Piece, offset: int) -> CompletionLogprobs | None:
        if self._asked.logprobs is None:
            return None
        return completion_logprobs(piece, self._words, offset)

    def _echoed_logprobs(self, number: int) -> CompletionLogprobs:
        read, most = self._read[number], self._asked.logprobs or 0
        return echoed_logprobs(read, self._words, self._echo(number), most)

    def _echo(self, number: int) -> str:
        return text_of(self.prompts[number], self._words) if self._asked.echo else ""

    def _answer(self, choices: list[CompletionChoice]) -> CompletionAnswer:
        name = f"cmpl-{self._exchange.id}"
        answer = CompletionAnswer(name, self._created, self._asked.model, choices, usage=UNSET)
        for read in self._read.values():  # all through one adapter
            answer.system_fingerprint = fingerprint(read.version)
        return answer


def prompts_of(given: str | list[str | int | list[int]], field: str, most: int) -> list[Prompt]:
    """The prompts of a request, in the named field, so many at most. Raises `Problem`: 400 if they
    are of different kinds, empty, or too many.
    """
    if isinstance(given, str):
        return [given]
    tokens = [each for each in given if isinstance(each, int)]
    if len(tokens) == len(given):
        return [tokens]
    found: list[Prompt] = [each for each in given if not isinstance(each, int)]
    if len(found) != len(given) or len({type(each) for each in found}) > 1:
        raise wrong(
            field, "texts, token ids and lists of token ids cannot be mixed", "invalid_value"
        )
    if not all(isinstance(each, str) or each for each in found):
        raise wrong(field, "a list of token ids is empty", "invalid_value")
    if len(found) > most:
        raise wrong(field, f"{len(found)} prompts; {most} at most", "invalid_value")
    return found


def text_of(prompt: Prompt, words: Vocabulary) -> str:
    """A prompt as text."""
    if isinstance(prompt, str):
        return prompt
    return b"".join(words.bytes_of(token) for token in prompt).decode(errors="replace")

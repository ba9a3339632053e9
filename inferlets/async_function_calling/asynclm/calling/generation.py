"""A generation with function calls: model, monitor, executor and interrupts together.

`_run_asynchronously` follows AsyncLM, section 5: calls run while the model writes on, and results
are put in at the first point outside of a critical section. `_run_in_turns` is how it is done
otherwise: the model ends its turn, and waits for results.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from asynclm.calling.options import USER, Inbox, Mode, Options, Style
from asynclm.calling.prompts import (
    add_tool_turn,
    request_text,
    style_for,
    system_prompt,
    task_text,
    too_much,
)
from asynclm.calling.record import Record, Recorder
from asynclm.cml.dialect import Dialect, Marker, whole
from asynclm.cml.grammars import block_grammar
from asynclm.cml.interrupts import Interrupt, InterruptManager, NoRoom
from asynclm.cml.monitor import Monitor
from asynclm.cml.parser import CallBlock, TextPart
from asynclm.cml.stream import TokenStream
from asynclm.tools.executor import CallRecord, Executor
from asynclm.tools.tool import Tool
from inferlet.context import Context
from inferlet.interception import interception
from inferlet.model import Model

AGENT = "agent"
LEAST_ROOM = 32  # tokens of context that the model keeps to say something
RECORDED_CHARACTERS = 500  # of a result, in events and records


class Generation:
    """One request, from its prompt to the model's last words.

    A turn that the model ends while results are outstanding, or further tasks may come, is not the
    end: it counts as a missing trap, and the generation goes on with the next interrupt.
    """

    def __init__(
        self,
        model: Model,
        tools: Sequence[Tool],
        options: Options,
        *,
        inbox: Inbox | None = None,
        on_event: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        """Nothing runs yet. Tasks and messages come by the inbox meanwhile; `on_event` is told of
        what happens: `text`, `call`, `interrupt`, `trap` and so on.

        Raises ValueError if there are no tools.
        """
        if not tools:
            raise ValueError("there are no tools to call")
        self._model = model
        self._options = options
        self._recorder = Recorder(on_event)
        self._dialect = Dialect(model.tokenizer)
        self._style = options.style or style_for(model, options.adapter)
        self._monitor = Monitor(self._dialect, model.stop_tokens)
        self._interrupts = InterruptManager(self._dialect, most_tokens=options.most_value_tokens)
        limit, timeout = options.limit, options.timeout
        self._executor = Executor(tools, self._done, limit=limit, timeout=timeout)
        self._inbox = inbox or Inbox()
        self._written: list[CallRecord] = []  # of a synchronous turn
        self._answered: dict[str, CallRecord] = {}  # by identifier
        self._news = asyncio.Event()  # a call has ended
        self._ctx = Context(model, adapter=options.adapter)
        script = options.script
        self._stream = TokenStream(
            self._ctx,
            self._monitor,
            block_grammar(
                self._dialect,
                [tool.signature for tool in tools],
                # Models that were not trained on CML leave names out, and then lack the results.
                named=script is None and self._style is not Style.COMPACT,
            ),
            options.sampler,
            None if script is None else lambda: script.next(self._dialect, model.stop_tokens[0]),
        )

    @property
    def record(self) -> Record:
        """Its record so far."""
        return self._recorder.record

    async def run(self, request: str, before: Sequence[Mapping[str, str]] = ()) -> Record:
        """Answers a request; `before` it are messages of the system, the user and the assistant,
        `role` and `content`. Raises PieError: of the server: `out-of-resources` and so on;
        ValueError: the prompt does not fit, or a script is wrong; CmlError: the model has broken
        CML all the same.
        """
        self._fill(request, before)
        self._inbox.connect(self._told, self._interrupts.wake)
        try:
            if self._options.mode is Mode.ASYNC:
                await self._run_asynchronously()
            else:
                await self._run_in_turns()
            self._stream.release()
            self._ctx.release()  # what still runs needs no pages
            await self._executor.finish()
        finally:
            self._executor.cancel()
            self._stream.release()
        return self._recorder.finish()

    # The asynchronous way

    async def _run_asynchronously(self) -> None:
        while self._has_room():
            if self._interrupts.pending and not self._monitor.critical:
                self._read_rest()
                interrupts = self._interrupts.take()
                if not self._put_in(interrupts, self._ctx.append):
                    return
                self._recorder.record.interrupts += len(interrupts)
            tokens = await self._stream.next(trap=self._can_wait)
            if tokens[0] not in self._monitor.stop_tokens:
                if self._read(tokens):
                    self._recorder.record.traps += 1
                    await self._wait()
                continue
            self._end_turn()
            if not self._can_wait:
                return
            if self._executor.outstanding:
                self._recorder.record.missing_traps += 1
            await self._wait()
            if not self._interrupts.pending and not self._can_wait:
                return  # nothing came, and nothing will

    async def _wait(self) -> None:
        """A trap: returns when there is something to put in, or nothing comes any more."""
        started = self._recorder.event("trap")
        if not self._interrupts.pending:
            await self._pause(self._interrupts.wait, self._executor.expected()[:1])
        self._recorder.record.waited_seconds += self._recorder.event("wake") - started

    # The synchronous way

    async def _run_in_turns(self) -> None:
        while self._has_room():
            tokens = await self._stream.next(trap=False)
            if tokens[0] not in self._monitor.stop_tokens:
                self._read(tokens)
                continue
            self._end_turn()
            if not self._written and not self._interrupts.pending and not self._inbox.open:
                return
            if not await self._answer_turn():
                return

    async def _answer_turn(self) -> bool:
        """Runs the turn's calls and tells the model of them, and what the user has said; whether
        it is to go on.
        """
        recorder = self._recorder
        started = recorder.event("turn")
        for call in self._written:
            self._executor.start(call)
            if self._options.mode is Mode.SYNC:
                await self._complete()
        if self._written:
            await self._complete()
        elif not self._interrupts.pending:
            await self._pause(self._interrupts.wait, [(None, USER)])
        recorder.record.waited_seconds += recorder.event("wake") - started
        order = {call.identifier: place for place, call in enumerate(self._written)}
        self._written.clear()
        interrupts = sorted(
            self._interrupts.take(), key=lambda one: order.get(one.identifier, len(order))
        )
        add = partial(add_tool_turn, self._ctx, self._style, self._dialect)
        return bool(interrupts) and self._put_in(interrupts, add)

    # Both

    def _put_in(self, interrupts: Sequence[Interrupt], add: Callable[[list[int]], object]) -> bool:
        """Adds interrupts to the context; whether there was room."""
        try:
            tokens = self._interrupts.tokens(interrupts, room=self._room())
        except NoRoom as error:
            self._end("context", str(error))
            return False
        before = len(self._ctx)
        add(tokens)
        self._recorder.record.text = ""
        self._recorder.record.injected_tokens += len(self._ctx) - before
        for interrupt in interrupts:
            self._delivered(interrupt)
        return True

    def _fill(self, request: str, before: Sequence[Mapping[str, str]]) -> None:
        """Fills the prompt in. Raises ValueError if it is as long as the model's whole context."""
        options, ctx = self._options, self._ctx
        tools = list(self._executor.tools.values())
        prompt = system_prompt(self._style, options.mode, tools, self._dialect)
        escape = self._dialect.escape
        if warning := too_much(self._style, request):
            self._recorder.warn(warning)
        rules = [one["content"] for one in before if one["role"] == "system"]
        ctx.system("\n\n".join([prompt, *map(escape, rules)]))
        for one in before:
            if one["role"] != "system":
                ctx.message(one["role"], escape(one["content"]))
        ctx.user(escape(request_text(self._style, request))).cue()
        if options.call_first:
            opening = self._dialect.encode_block((Marker.CALL,))
            ctx.append(opening)
            for token in opening:
                self._monitor.feed(token)
        count = len(ctx)
        if count + LEAST_ROOM > self._model.max_position:
            raise ValueError(
                f"a prompt of {count} tokens leaves no room in a context of"
                f" {self._model.max_position}: offer fewer tools, or a shorter request"
            )
        ctx.sequence.expect(min(options.max_tokens, self._model.max_position - count))
        self._recorder.record.prompt_tokens = count

    def _read(self, tokens: Sequence[int]) -> bool:
        """Reads tokens and starts the calls that they complete; whether they end a trap."""
        self._recorder.tokens(len(tokens))
        trapped = False
        for token in tokens:
            for block in self._monitor.feed(token):
                if isinstance(block, CallBlock):
                    self._call(block)
                elif isinstance(block, TextPart):
                    self._recorder.text(block.text)
                else:
                    trapped = True
        return trapped

    def _end_turn(self) -> None:
        """Notes the stop token that ends a turn."""
        self._recorder.tokens(1)
        self._read_rest()

    def _read_rest(self) -> None:
        """Reads text that was held back: a character or a marker that was never completed."""
        for block in self._monitor.end_turn():
            if isinstance(block, TextPart):
                self._recorder.text(block.text)

    def _call(self, block: CallBlock) -> None:
        if block.problem:
            self._recorder.event("refused", block.identifier)
            value = f"error: {block.problem}"
            self._interrupts.push(Interrupt(block.identifier, value, refuses=True))
        elif self._options.mode is Mode.ASYNC or not block.identifier:
            self._executor.start(call := CallRecord(block.identifier, "", block.text))
            self._recorder.call(call)
        else:
            self._recorder.call(call := CallRecord(block.identifier, "", block.text))
            self._written.append(call)

    def _done(self, call: CallRecord, text: str, length: int) -> None:
        """Takes the outcome of a call; it waits to be put in."""
        recorder = self._recorder
        call.ended = recorder.event("result", call.identifier, failed=call.failed)
        call.result = text[:RECORDED_CHARACTERS]
        call.started = recorder.since(call.started or 0.0)
        if call.identifier:
            self._answered[call.identifier] = call
            self._interrupts.push(Interrupt(call.identifier, text, length))
        elif call.failed:
            recorder.warn(f"the model was not told that {call.call} failed: {call.result}")
        self._news.set()

    def _told(self, sender: str, text: str) -> None:
        """Takes a message from outside."""
        self._recorder.event("message", sender)
        if sender == USER:
            self._interrupts.push(Interrupt(USER, whole(task_text(self._style, text))))
        else:
            self._interrupts.push(Interrupt(AGENT, whole(f"{sender}: {text}")))

    def _delivered(self, interrupt: Interrupt) -> None:
        """Notes that an interrupt is in the context."""
        identifier, script = interrupt.identifier, self._options.script
        at = self._recorder.event(
            "interrupt", identifier, value=interrupt.value[:RECORDED_CHARACTERS]
        )
        call = None if interrupt.refuses else self._answered.get(identifier)
        if call is not None:
            call.delivered = at
        if script is None:
            return
        if identifier == USER and not interrupt.refuses:
            script.task_arrived()
        else:
            script.arrived(identifier)

    async def _complete(self) -> None:
        """Waits until no call runs any more whose answer is expected."""
        if self._executor.outstanding:
            await self._pause(self._answers, self._executor.expected()[-1:])

    async def _answers(self) -> None:
        while self._executor.outstanding:
            self._news.clear()
            await self._news.wait()

    async def _pause(
        self, arrival: Callable[[], Awaitable[None]], expected: Sequence[tuple[float | None, str]]
    ) -> None:
        """Waits with the pages where the policy wants them (AsyncLM, section 5.4): it is told in
        how many seconds something is expected, if that is known, and of which tool.
        """
        record, resident = self._recorder.record, self._ctx.seq_len
        seconds, tool = expected[0] if expected else (None, "")
        policy = self._options.policy
        async with interception(self._ctx, policy, tool=tool, expected_seconds=seconds) as absence:
            await arrival()
        action = absence.choices[0]
        record.pauses[action] += 1
        if action == "discard":
            record.recomputed_tokens += resident

    @property
    def _can_wait(self) -> bool:
        """True if there is, or will be, anything to wait for."""
        return bool(self._executor.outstanding or self._interrupts.pending or self._inbox.open)

    def _room(self) -> int:
        """Tokens that may be put in so that the model can still say something."""
        return self._model.max_position - len(self._ctx) - LEAST_ROOM

    def _has_room(self) -> bool:
        """True if the model may go on; notes why not."""
        most, room = self._options.max_tokens, self._model.max_position
        if self._recorder.record.generated_tokens >= most:
            self._end("max_tokens", f"it has {most} tokens, the most that were allowed")
        elif len(self._ctx) >= room:
            self._end("context", f"the model's context of {room} tokens is full")
        return self._recorder.record.ended == "done"

    def _end(self, reason: str, why: str) -> None:
        self._recorder.record.ended = reason
        self._recorder.warn(f"the answer is not whole: {why}")

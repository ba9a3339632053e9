"""Runs that the server reads as text: what goes to the client, and when the run waits for it."""

from __future__ import annotations

from typing import Any

from scheduler.test_eviction import Machine, pause
from scheduler.test_runs import SAMPLERS, Runner
from support.puppets import PuppetProgram, call
from support.rig import runtime
from support.scheduler_fixtures import Guest, Server

from pie_control.instances.futures import FutureKind
from pie_control.instances.mailbox import Outbox
from pie_control.scheduler.commands.run import LEAD


class Words:
    """A tokenizer whose tokens are numbers in words."""

    def bytes_of(self, token: int) -> bytes:
        return b"%d " % token


class Reading:
    """A run that the server reads for a client with room for a few messages."""

    def __init__(
        self, most: int, ends: list[str], *, to_client: bool = True, begun: int | None = None
    ) -> None:
        """Goes on as far as it can, or for so many plans."""
        self.server = server = Server(kv_pages=200)
        server.parts.models.codecs["symbolic"] = Words()  # type: ignore[assignment]
        self.guest = guest = Runner(server)
        guest.instance.outbox = Outbox(4, 10_000)
        expected = Runner(Server(reference=True, kv_pages=200))
        self.tokens = expected.steps(expected.sampler(SAMPLERS[1]), most)
        self.run = guest.start(guest.sampler(SAMPLERS[1]), most)
        run_text = server.function("run-text")
        self.future: int = run_text(*guest.at, self.run, [], ends, [], to_client)
        if begun is None:
            server.drain()
        for _ in range(begun or 0):
            server.step()

    def text(self, count: int) -> str:
        return "".join(f"{token} " for token in self.tokens[:count])

    def ready(self) -> bool:
        return self.guest.instance.futures.get(self.future).ready

    def take(self) -> Any:
        return self.guest.instance.futures.take(self.future, FutureKind.RUN_TEXT)

    def receive(self) -> str:
        """The client reads a message."""
        message = self.guest.instance.outbox.pop()
        assert isinstance(message, str)
        return message


def test_a_run_waits_for_its_client() -> None:
    reading = Reading(100, [])
    guest, outbox = reading.guest, reading.guest.instance.outbox
    assert len(outbox) == 4
    assert not reading.ready()
    assert 4 <= len(guest.tokens(reading.run)) <= 5 + LEAD
    assert guest.instance.queued_commands == 0  # nothing of it is under way
    messages = []
    while not reading.ready():
        messages.append(reading.receive())
        reading.server.drain()
    while len(outbox):
        messages.append(reading.receive())
    assert "".join(messages) == reading.text(100)
    assert reading.take() == (reading.text(100), 100, 0)


def test_a_run_that_nobody_reads_ends_with_its_instance() -> None:
    reading = Reading(100, [])
    reading.server.end(reading.guest.instance)
    reading.server.drain()
    assert reading.server.service.pages.free == 200


def test_given_up_it_sends_no_more_and_the_run_goes_on() -> None:
    reading = Reading(20, [])
    guest = reading.guest
    guest.instance.futures.cancel(reading.future)
    for _ in range(4):
        reading.receive()
        reading.server.drain()
    assert not len(guest.instance.outbox)
    assert guest.tokens(reading.run) == reading.tokens


def test_a_string_ends_it_and_what_may_begin_one_waits() -> None:
    tokens = Reading(12, []).tokens
    end = f"{tokens[1]} {tokens[2]} "
    reading = Reading(12, ["no such text", end])
    assert reading.ready()
    assert reading.receive() == f"{tokens[0]} "
    assert not len(reading.guest.instance.outbox)
    assert reading.take() == (f"{tokens[0]} ", 3, 1)
    reading.guest.end(reading.run, 3)
    assert reading.guest.length == 5


def test_the_guest_may_take_tokens_meanwhile() -> None:
    reading = Reading(40, ["no such text"], to_client=False)
    assert reading.ready()
    assert not len(reading.guest.instance.outbox)
    assert reading.guest.tokens(reading.run) == reading.tokens
    assert reading.take() == (reading.text(40), 40, 1)


def test_given_up_between_two_tokens_it_sends_no_more() -> None:
    reading = Reading(60, [], begun=3)
    instance = reading.guest.instance
    sent = [reading.receive() for _ in range(len(instance.outbox))]
    instance.futures.cancel(reading.future)
    reading.server.drain()
    assert "".join(sent) == reading.text(len(sent))
    assert not len(instance.outbox)
    assert len(reading.guest.tokens(reading.run)) > len(sent)


def test_a_run_whose_pages_were_evicted_goes_on_when_its_client_reads() -> None:
    """Its guest waits for the whole text, and has no turn that would bring them back."""
    machine = Machine(kv_pages=20, host_pages=40)
    machine.parts.models.codecs["symbolic"] = Words()  # type: ignore[assignment]
    read: list[int] = []

    def reads(guest: Any) -> PuppetProgram:
        run = guest.start(guest.sampler(SAMPLERS[1]), 90)
        text = machine.function("run-text")
        future = text(*guest.at, run, [], [], [], True)
        yield from call(runtime.wait, guest.instance, [future])
        read.append(guest.instance.futures.take(future, FutureKind.RUN_TEXT)[1])
        return "ok"

    def takes_pages(guest: Guest) -> PuppetProgram:
        guest.pages(17)
        return (yield from pause(guest))

    reader = Runner(machine)
    reader.instance.outbox = Outbox(4, 10_000)
    machine.add(reader, reads(reader))
    machine.settle()
    machine.begin(takes_pages)
    assert machine.counts["absent"] == 1
    machine.answer(0)
    for _ in range(200):
        while reader.instance.outbox.pop() is not None:
            pass
        machine.settle()
    assert read == [90]

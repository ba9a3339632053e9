"""Runs conformance cases through an interpreter guest on a real server."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from typing import Any

from conformance.case_files import Case, CaseError, Step
from conformance.values import FUNCTIONS, NotYetKnown, Reference, argument, evaluate, plain

from pie_py.client.sync import Client, Instance


class Failure(AssertionError):
    """A step did not do what the case says."""


class Actor:
    """One instance of the interpreter, and the calls that it has not been told of yet."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.calls: list[tuple[Step, str, list[Any]]] = []
        self._messages: deque[str | bytes] = deque()  # that calls sent to the client

    def perform(self) -> list[dict[str, Any]]:
        """Has the calls performed; what came of each."""
        self.instance.send(json.dumps([[name, args] for _, name, args in self.calls]))
        while (message := self.instance.receive()) is not None:
            if isinstance(message, str) and message.startswith('[{"'):
                outcomes: list[dict[str, Any]] = json.loads(message)
                return outcomes
            self._messages.append(message)
        raise Failure(f"the interpreter has ended: {self.instance.result()}")

    def receive(self) -> str | bytes | None:
        """The next message that calls sent to the client."""
        return self._messages.popleft() if self._messages else self.instance.receive()


class Run:
    """One run of a case. Calls that follow each other are sent together, so that queues fill up."""

    def __init__(
        self, client: Client, program: str, names: Mapping[str, Any], functions: Mapping[str, Any]
    ) -> None:
        self._client = client
        self._program = program
        self._functions = {**FUNCTIONS, **functions}
        self._names: dict[str, Any] = {**names, "true": True, "false": False, "program": program}
        self._actors: dict[str, Actor] = {}
        self._acting = "a"

    def run(self, case: Case) -> None:
        """Runs a case to its end.

        Raises:
            Failure: something is not as the case says.
        """
        try:
            for step in case.steps:
                try:
                    self._step(step)
                except (CaseError, KeyError, IndexError, TypeError) as error:
                    raise CaseError(f"line {step.line}: {step.text}: {error!r}") from error
            self._flush()
            for actor in self._actors.values():
                actor.instance.send("")
                if (end := actor.instance.result()) != "done":
                    raise Failure(f"an interpreter ended with {end!r}")
        finally:
            for actor in self._actors.values():
                if not actor.instance.ended:
                    actor.instance.cancel()

    def _actor(self, name: str) -> Actor:
        if name not in self._actors:
            launched = self._client.launch(self._program, ["serve", name])
            self._actors[name] = Actor(launched)
        return self._actors[name]

    def _step(self, step: Step) -> None:
        if step.function is None:
            self._flush()
            assert step.equal is not None
            if not evaluate(step.equal, self._names, self._functions):
                raise Failure(f"line {step.line}: {step.text}: does not hold {self._shown()}")
        elif step.function.startswith("client."):
            self._flush()
            self._by_client(step)
        else:
            if step.actor != self._acting:
                self._flush()
                self._acting = step.actor
            self._call(step, step.function)

    def _by_client(self, step: Step) -> None:
        actor = self._actor(step.actor)
        values = [evaluate(node, self._names, self._functions) for node in step.arguments]
        if step.function == "client.send":
            actor.instance.send(*values)
            return
        if step.function == "client.log":
            lines = actor.instance.logs()["lines"]
            got = [[line["level"], line["text"]] for line in lines]
        else:
            got = plain(actor.receive())
        if step.name:
            self._names[step.name] = got
        self._compare(step, got)

    def _call(self, step: Step, function: str) -> None:
        actor = self._actor(step.actor)
        try:
            values = [evaluate(node, self._names, self._functions) for node in step.arguments]
        except NotYetKnown:
            self._flush()
            values = [evaluate(node, self._names, self._functions) for node in step.arguments]
        for _ in range(step.times):
            actor.calls.append((step, function, [argument(value) for value in values]))
        if step.name:
            self._names[step.name] = Reference(len(actor.calls) - 1)

    def _flush(self) -> None:
        for actor in self._actors.values():
            if actor.calls:
                self._check(actor, actor.perform())

    def _check(self, actor: Actor, outcomes: list[dict[str, Any]]) -> None:
        calls, actor.calls = actor.calls, []
        errors: list[str] = []  # of the same step
        for number, ((step, _, _), outcome) in enumerate(zip(calls, outcomes, strict=True)):
            errors.append(outcome.get("error", ""))
            last = number + 1 == len(calls) or calls[number + 1][0] is not step
            if not last:
                continue
            told, errors = errors, []
            if step.name and self._names.get(step.name) == Reference(number):
                self._names[step.name] = outcome.get("ok", outcome.get("error"))
            if step.error is not None:
                # A guest that is interrupted among its calls may find that there is room again.
                if not any(error.startswith(f"{step.error}: ") for error in told):
                    raise Failure(f"line {step.line}: {step.text}: {outcome}")
            elif "error" in outcome:
                raise Failure(f"line {step.line}: {step.text}: {outcome['error']}")
            else:
                self._compare(step, outcome["ok"])

    def _compare(self, step: Step, got: Any) -> None:
        if step.equal is None:
            return
        wanted = plain(evaluate(step.equal, self._names, self._functions))
        if got != wanted:
            raise Failure(f"line {step.line}: {step.text}: {repr(got)[:2000]}")

    def _shown(self) -> str:
        shown = [f"{name} = {repr(value)[:300]}" for name, value in self._names.items()]
        return "\n  ".join(["with", *shown])

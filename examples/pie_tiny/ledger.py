"""A request against a model's calls: which calls are ready, made, answered,
wrong.
"""

from __future__ import annotations

from enum import StrEnum

from examples.pie_tiny.corpus.calls import final_results
from examples.pie_tiny.corpus.tasks import Chain, Request, chain_letter, closing_words
from examples.pie_tiny.parsing import ParsedCall, parse_call

UNKNOWN_CALL = "error: unknown call"
"""The result of a call that was not requested."""

Place = tuple[int, int]
"""The number of a chain and of a call in it."""


class Problem(StrEnum):
    """Why an episode is not all right, beside violations of CML."""

    ARGUMENTS = "wrong arguments"
    FUNCTION = "unknown function"
    UNWANTED = "a call not asked for"
    AGAIN = "a call made twice"
    ANSWER = "an answer asked for that is not needed, or the other way round"
    ORDER = "a call before the one it follows"
    EARLY = "a call before the result it waits for"
    MISSING = "a call not made"
    MISSING_TRAP = "ended with results outstanding"
    IDLE_TRAP = "a trap with nothing outstanding"
    SYNCHRONOUS_TRAP = "a trap among synchronous calls"
    CUT = "too long"


class Ledger:
    """Compares calls with a request, as they come.

    Attributes:
        chains: those asked for by now.
        problems: what went wrong, in order.
        decisions: how often there were two or more ready calls to choose from.
        longest: how often of these the choice fell on a longest one.
    """

    def __init__(self, request: Request, known: int) -> None:
        self.chains: list[Chain] = list(request.chains[:known])
        self.problems: list[Problem] = []
        self.decisions = self.longest = 0
        self._estimates = {function.name: function.estimate for function in request.functions}
        self._made: set[Place] = set()
        self._right: set[Place] = set()
        self._delivered: set[Place] = set()

    @property
    def expected(self) -> list[Place]:
        """All calls that should be made: of every chain up to the one that fails."""
        return [
            (number, step)
            for number, chain in enumerate(self.chains)
            for step in range(len(chain))
            if not any(call.failed for call in chain[:step])
        ]

    @property
    def right(self) -> int:
        """How many of them were made, at the right time and with the right arguments."""
        return len(self._right)

    @property
    def closing_words(self) -> str:
        """The words that the model should say at the end."""
        return closing_words(final_results(self.chains))

    def ready(self) -> list[Place]:
        """Calls not made whose turn it is: nothing before them in their chain is outstanding."""
        return [
            place for place in self.expected if place not in self._made and self._is_ready(place)
        ]

    def choose(self, name: str | None) -> None:
        """Notes the model's choice at a point where it begins a block, before the call is `made`.

        After the first mistake it is unclear what the model takes for ready: nothing counts any
        more.

        Args:
            name: the function it calls, None if it traps or ends instead.
        """
        estimates = [self._estimate(place) for place in self.ready()]
        if len(estimates) >= 2 and not self.problems:
            self.decisions += 1
            self.longest += name is not None and self._estimates.get(name) == max(estimates)

    def make(self, identifier: str, call: ParsedCall) -> Place | None:
        """Takes a call that the model has made; returns which one of the expected it is, if any."""
        alike = [place for place in self.expected if call.same(self._parsed(place))]
        unmade = [place for place in alike if place not in self._made]
        if not unmade:
            self.problems.append(Problem.AGAIN if alike else self._what_is_wrong(call))
            return None
        # Of two equal calls the one meant is the one that is ready, or else that the identifier
        # names.
        place = min(unmade, key=lambda p: (not self._is_ready(p), _identifier(p) != identifier, p))
        if self._is_ready(place):
            self._right.add(place)
        else:
            number, step = place
            called = (number, step - 1) in self._made
            self.problems.append(Problem.EARLY if called else Problem.ORDER)
        if bool(identifier) != self.chains[place[0]][place[1]].answered:
            self.problems.append(Problem.ANSWER)
        self._made.add(place)
        return place

    def result(self, place: Place | None) -> str:
        """A call's result, as an interrupt holds it."""
        return self.chains[place[0]][place[1]].written_result if place else UNKNOWN_CALL

    def estimate(self, name: str) -> int:
        """How long a call takes, in hundredths of a second; of a function that does not exist,
        1.
        """
        return self._estimates.get(name, 1)

    def deliver(self, place: Place | None) -> None:
        """Notes that the model has been given the result of a call."""
        if place:
            self._delivered.add(place)

    def close(self) -> None:
        """Notes what is missing at the end."""
        if any(place not in self._made for place in self.expected):
            self.problems.append(Problem.MISSING)

    def _is_ready(self, place: Place) -> bool:
        number, step = place
        return step == 0 or (number, step - 1) in self._delivered

    def _parsed(self, place: Place) -> ParsedCall:
        number, step = place
        chain = self.chains[number]
        return parse_call(chain[step].text(chain[step - 1].result if step else None))

    def _estimate(self, place: Place) -> int:
        return self.chains[place[0]][place[1]].function.estimate

    def _what_is_wrong(self, call: ParsedCall) -> Problem:
        if call.name not in self._estimates:
            return Problem.FUNCTION
        unmade = [place for place in self.expected if place not in self._made]
        names = {self.chains[number][step].function.name for number, step in unmade}
        return Problem.ARGUMENTS if call.name in names else Problem.UNWANTED


def _identifier(place: Place) -> str:
    return f"{chain_letter(place[0])}{place[1] + 1}"

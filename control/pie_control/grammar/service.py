"""Compiles grammars in threads, within limits, and keeps the compiled ones."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import structlog
import trio
from llguidance import LLMatcher, LLParserLimits

from pie_control.errors import ApiError
from pie_control.grammar.kinds import ebnf_grammar, schema_grammar
from pie_control.grammar.matcher import Matcher, first_lines
from pie_control.grammar.turns import Owner
from pie_control.grammar.vocabulary import Vocabulary, load_vocabulary
from pie_control.models.tokenizer import TextCodec
from pie_py.config.services import GrammarConfig
from pie_py.wire.plan import ModelDescription

log = structlog.get_logger("pie.grammar")

_UNLIMITED = trio.CapacityLimiter(math.inf)  # the caller holds a place in a limiter already

# A token is consumed on the control thread: with llguidance's own limits an ambiguous grammar could
# hold it up for a tenth of a second at each one, with these for a few milliseconds. Rows of JSON
# schemas have some dozens of items, those of an object with 200 optional members 800.
_LIMITS = LLParserLimits(
    max_items_in_row=800, step_max_items=10_000, max_lexer_states=50_000, max_grammar_size=200_000
)


KINDS: dict[str, Callable[[str], str]] = {
    "json-schema": schema_grammar,
    "regex": LLMatcher.grammar_from_regex,
    "lark": LLMatcher.grammar_from_lark,
    "ebnf": ebnf_grammar,
}


@dataclass(frozen=True, slots=True)
class Grammar:
    """A compiled grammar of one model. Nothing changes it; matchers start from copies."""

    model: str
    vocabulary: Vocabulary
    root: LLMatcher

    def matcher(self, wake: Callable[[], None], owner: Owner) -> Matcher:
        """A matcher at the grammar's start; `wake` asks for another turn of the scheduler."""
        return Matcher(self.model, self.vocabulary, self.root, wake, owner)


class _Compilation:
    """A grammar that is being compiled, for all of one user who want it."""

    def __init__(self) -> None:
        self.done = trio.Event()
        self.result: Grammar | ApiError | None = None  # None: all waiters gave up
        self.wanted = 0  # by so many
        self.in_thread = False
        self.scope = trio.CancelScope()


class _Share:
    """What one user has of the service."""

    def __init__(self) -> None:
        self.waiting = 0  # compilations under way, abandoned ones in threads included
        self.turn = trio.Lock()  # of the one that has a thread, or comes next


class GrammarService:
    """The compiled grammars of the server, by model, kind and text."""

    def __init__(self, config: GrammarConfig) -> None:
        self._config = config
        self._limiter = trio.CapacityLimiter(config.threads)
        self._vocabularies: dict[str, Vocabulary] = {}
        self._kept: OrderedDict[tuple[str, str, str], Grammar] = OrderedDict()
        self._kept_characters = 0
        self._under_way: dict[tuple[str, str, str, str], _Compilation] = {}  # by user and key
        self._shares: dict[str, _Share] = {}  # by user
        self._nursery: trio.Nursery | None = None  # of the tasks that wait for compilations

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Carries what `start` has begun, until cancelled."""
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            await trio.sleep_forever()

    def __len__(self) -> int:
        return len(self._kept)

    def check(self, kind: str, text: str) -> None:
        """Refuses at once what cannot be compiled.

        Raises:
            ApiError: `invalid-argument`, `limit-exceeded`.
        """
        if kind not in KINDS:
            raise ApiError(
                "invalid-argument", f"no kind of grammar is called {kind!r}; {', '.join(KINDS)} are"
            )
        most = self._config.text_characters
        if len(text) > most:
            raise ApiError("limit-exceeded", f"a grammar of {len(text)} characters; {most} at most")

    def kept(self, model: str, kind: str, text: str) -> Grammar | None:
        """A grammar that was compiled before, if it is still there."""
        key = (model, kind, text)
        kept = self._kept.get(key)
        if kept is not None:
            self._kept.move_to_end(key)
        return kept

    def start(
        self,
        model: ModelDescription,
        codec: TextCodec,
        kind: str,
        text: str,
        user: str,
        done: Callable[[Grammar | ApiError], None],
    ) -> Callable[[], None]:
        """Compiles in the background, as `compile`, and calls `done` once.

        Returns what gives the compilation up; `done` is not called then.
        """
        assert self._nursery is not None, "the service runs"
        scope = trio.CancelScope()

        async def run() -> None:
            with scope:
                try:
                    done(await self.compile(model, codec, kind, text, user))
                except ApiError as error:
                    done(error)
                except Exception as error:
                    done(ApiError("internal", f"{type(error).__name__}: {error}"))

        self._nursery.start_soon(run)
        return scope.cancel

    async def compile(
        self, model: ModelDescription, codec: TextCodec, kind: str, text: str, user: str = ""
    ) -> Grammar:
        """The compiled grammar, from the cache if it was compiled before. Users take turns.

        Raises:
            ApiError: `invalid-argument` (it is wrong), `limit-exceeded` (too large, too slow),
                `unsupported` (the model's tokenizer does not work with grammars).
        """
        result: Grammar | ApiError | None = self.kept(model.name, kind, text)
        while result is None:
            compilation = self._under_way.get((user, model.name, kind, text))
            if compilation is None:
                compilation = self._begin(model, codec, kind, text, user)
            result = await self._wait(compilation, self._shares[user].waiting)
        if isinstance(result, ApiError):
            raise ApiError(result.code, result.message)
        return result

    async def _wait(self, compilation: _Compilation, in_line: int) -> Grammar | ApiError | None:
        """The result, waiting for as long as a line of so many compilations of a user may take."""
        seconds = self._config.compile_seconds * in_line
        compilation.wanted += 1
        try:
            with trio.move_on_after(seconds):
                await compilation.done.wait()
                return compilation.result
        finally:
            compilation.wanted -= 1
            if not compilation.wanted and not compilation.in_thread:
                compilation.scope.cancel()
        text = f"the grammar is not compiled after {seconds:g} s"
        if not compilation.in_thread:
            text += ", since others are being compiled still"
        return ApiError("limit-exceeded", text)

    def _begin(
        self, model: ModelDescription, codec: TextCodec, kind: str, text: str, user: str
    ) -> _Compilation:
        """Begins a compilation of a user: so many at once, since each keeps its text.

        Raises:
            ApiError: `limit-exceeded`.
        """
        share = self._shares.get(user)
        most = self._config.user_compilations
        if share is not None and share.waiting >= most:
            raise ApiError(
                "limit-exceeded",
                f"{most} grammars of this user are being compiled, in all instances; wait for some"
                " first",
            )
        if share is None:
            share = self._shares[user] = _Share()
        share.waiting += 1
        compilation = self._under_way[user, model.name, kind, text] = _Compilation()
        # A thread cannot be stopped. So that one user never has two of them, a task keeps the turn
        # until the thread has really ended, even if all waiters have given up.
        trio.lowlevel.spawn_system_task(
            self._carry_out, compilation, share, model, codec, kind, text, user
        )
        return compilation

    async def _carry_out(
        self,
        compilation: _Compilation,
        share: _Share,
        model: ModelDescription,
        codec: TextCodec,
        kind: str,
        text: str,
        user: str,
    ) -> None:
        """Compiles when it is the user's turn. Raises nothing."""
        key = (model.name, kind, text)
        try:
            with compilation.scope:
                async with share.turn, self._limiter:
                    compilation.in_thread = True
                    grammar = self._kept.get(key)  # another user may have been first
                    if grammar is None:
                        grammar = await trio.to_thread.run_sync(
                            self._compile,
                            model,
                            codec,
                            kind,
                            text,
                            abandon_on_cancel=True,  # when the server stops
                            limiter=_UNLIMITED,
                        )
                        self._keep(key, grammar)
                    compilation.result = grammar
        except ApiError as error:
            compilation.result = error
        except Exception as error:
            log.exception("a grammar cannot be compiled", kind=kind)
            compilation.result = ApiError("internal", f"{type(error).__name__}: {error}")
        finally:
            del self._under_way[user, *key]
            share.waiting -= 1
            if not share.waiting:
                del self._shares[user]
            compilation.done.set()

    def _compile(self, model: ModelDescription, codec: TextCodec, kind: str, text: str) -> Grammar:
        """Runs in a thread."""
        vocabulary = self._vocabularies.get(model.name)
        if vocabulary is None:
            vocabulary = load_vocabulary(codec, model.vocab_size, model.stop_tokens)
            self._vocabularies[model.name] = vocabulary
        root = LLMatcher(vocabulary.tokenizer, KINDS[kind](text), log_level=0, limits=_LIMITS)
        if root.is_error():
            raise ApiError("invalid-argument", f"the grammar: {first_lines(root.get_error())}")
        if root.is_stopped() and not root.is_accepting():
            raise ApiError("invalid-argument", "the grammar: no text satisfies it")
        return Grammar(model.name, vocabulary, root)

    def _keep(self, key: tuple[str, str, str], grammar: Grammar) -> None:
        """Keeps a grammar, within bounds: those not used for longest make room."""
        config = self._config
        if key not in self._kept:  # two users' threads may have compiled it at once
            self._kept_characters += len(key[2])
        self._kept[key] = grammar
        while self._kept and (
            len(self._kept) > config.kept or self._kept_characters > config.kept_characters
        ):
            oldest, _ = self._kept.popitem(last=False)
            self._kept_characters -= len(oldest[2])

"""Constrained decoding: grammars are compiled by llguidance and walked beside the model.

Here they are compiled, within limits, and the compiled ones kept; `matcher` is one walk through a
grammar.

llguidance needs stack in proportion to a grammar's nesting, and ends its process where there is too
little; nor does it look at a clock. So a grammar is compiled twice: first in a confined process
(`compiling.py`), then, if that went well, in a thread here that has eight times that process's
stack. A compiled grammar can't be sent from process to process, and masks must take microseconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

import structlog
import trio
from cachetools import LRUCache

from pie_control.api.grammar.compiling import KINDS, compiled, probe
from pie_control.api.grammar.matcher import Grammar
from pie_control.api.grammar.vocabulary import Vocabulary, load_vocabulary
from pie_control.confined.pool import ConfinedPool
from pie_control.confined.process import STACK_BYTES as PROBE_STACK_BYTES
from pie_control.errors import ApiError, Shortage, exceeded, invalid
from pie_control.fairness import FairThreads, Owner
from pie_control.models.tokenizer import TextCodec
from pie_control.tasks import take_off
from pie_py.config.services import GrammarConfig
from pie_py.wire.plan import ModelDescription

log = structlog.get_logger("pie.grammar")

STACK_BYTES = 8 * PROBE_STACK_BYTES
MOST_CHARACTERS = 256 << 10  # of one grammar
THREADS = 2  # that compile; a user has one of them at a time
USER_COMPILATIONS = 64  # under way, of all instances of one user
KEPT_BYTES = 128 << 20  # of compiled grammars that are kept for later uses
# A compiled grammar takes, at most about: in any case, and for each character of its text.
LEAST_BYTES, BYTES_A_CHARACTER = 128 << 10, 100


class _Key(NamedTuple):
    """The key of a compiled grammar in the cache."""

    user: str  # empty if all share
    model: str
    kind: str
    text: str


class _Compilation:
    """A grammar that is being compiled, for all instances of a user that want it."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[Grammar | ApiError], None]] = []
        self.scope = trio.CancelScope()


class GrammarService:
    """The compiled grammars of the server, by model, kind and text."""

    def __init__(self, config: GrammarConfig, confined: ConfinedPool) -> None:
        self._config = config
        self._confined = confined
        self._threads = FairThreads(THREADS, 1, "grammar-compile", STACK_BYTES)
        self._vocabularies: dict[str, Vocabulary] = {}
        self._cache: LRUCache[_Key, Grammar] = LRUCache(KEPT_BYTES, lambda one: one.size)
        self._under_way: dict[tuple[str, _Key], _Compilation] = {}  # by user
        self._counts: Counter[str] = Counter()  # of those under way, by user

    def __len__(self) -> int:
        return len(self._cache)

    def check(self, kind: str, text: str) -> None:
        """Refuses at once what cannot be compiled.

        Raises:
            ApiError: `invalid-argument`, `limit-exceeded`.
        """
        if kind not in KINDS:
            raise invalid(f"no kind of grammar is called {kind[:100]!r}; {', '.join(KINDS)} are")
        if len(text) > MOST_CHARACTERS:
            raise exceeded(f"a grammar of {len(text)} characters; {MOST_CHARACTERS} at most")

    def compiled(self, model: str, kind: str, text: str, user: str) -> Grammar | None:
        """A grammar that was compiled before for the user, if it is still there."""
        return self._cache.get(self._key(model, kind, text, user))

    def start(
        self,
        model: ModelDescription,
        codec: TextCodec,
        kind: str,
        text: str,
        user: str,
        done: Callable[[Grammar | ApiError], None],
    ) -> Callable[[], None]:
        """Compiles in the background, and calls `done` once; users take turns. Errors are
        `invalid-argument` (it is wrong), `limit-exceeded` (too large, too slow), `unsupported` (the
        model's tokenizer does not work with grammars).

        Returns what gives the compilation up; `done` is not called then.
        """
        key = self._key(model.name, kind, text, user)
        compilation = self._under_way.get((user, key))
        if compilation is None:
            if self._counts[user] >= USER_COMPILATIONS:  # each holds its text
                done(Shortage(f"{USER_COMPILATIONS} grammars of this user are being compiled"))
                return lambda: None
            self._counts[user] += 1
            compilation = self._under_way[user, key] = _Compilation()
            trio.lowlevel.spawn_system_task(self._carry_out, compilation, model, codec, key, user)
        compilation.waiting.append(done)

        def give_up() -> None:
            if done in compilation.waiting:
                compilation.waiting.remove(done)
                if not compilation.waiting:
                    compilation.scope.cancel()

        return give_up

    async def _carry_out(
        self,
        compilation: _Compilation,
        model: ModelDescription,
        codec: TextCodec,
        key: _Key,
        user: str,
    ) -> None:
        """Compiles while a caller waits for it. Raises nothing."""
        result: Grammar | ApiError | None = None
        try:
            while compilation.waiting and result is None:  # else all gave up, and others came
                compilation.scope = trio.CancelScope()
                result = await self._compile(compilation, model, codec, key, user)
        except ApiError as error:
            result = error
        except Exception as error:
            log.exception("a grammar cannot be compiled", kind=key.kind)
            result = ApiError("internal", f"{type(error).__name__}: {error}")
        finally:
            del self._under_way[user, key]
            take_off(self._counts, user)
        for done in compilation.waiting:
            if isinstance(result, ApiError):  # each raises one of its own
                done(ApiError(result.code, result.message))
            elif result is not None:
                done(result)

    async def _compile(
        self,
        compilation: _Compilation,
        model: ModelDescription,
        codec: TextCodec,
        key: _Key,
        user: str,
    ) -> Grammar | None:
        """The grammar; None if all gave up before it had a thread. Only its own compilation is
        limited, by the CPU time that it takes: not the line before it, nor a process's start.
        """
        owner, ready = Owner(user, ""), None
        with compilation.scope:
            ready = await self._confined.call(
                owner,
                "the grammar",
                probe,
                str(codec.folder),
                model.vocab_size,
                model.stop_tokens,
                key.kind,
                key.text,
                seconds=self._config.compile_seconds,
            )
        if ready is None:
            return None

        def make() -> Grammar | None:
            return self._compile_here(model, codec, ready) if compilation.waiting else None

        grammar = await self._threads.run(owner, make)
        if grammar is not None:
            with suppress(ValueError):  # it is larger than the cache
                self._cache[key] = grammar
        return grammar

    def _compile_here(self, model: ModelDescription, codec: TextCodec, ready: str) -> Grammar:
        """Runs in a thread. `ready` is what `probe` has returned."""
        vocabulary = self._vocabularies.get(model.name)
        if vocabulary is None:
            vocabulary = load_vocabulary(codec, model.vocab_size, model.stop_tokens)
            self._vocabularies[model.name] = vocabulary
        size = LEAST_BYTES + BYTES_A_CHARACTER * len(ready)
        return Grammar(model.name, vocabulary, compiled(vocabulary, ready), size)

    def _key(self, model: str, kind: str, text: str, user: str) -> _Key:
        return _Key("" if self._config.shared else user, model, kind, text)

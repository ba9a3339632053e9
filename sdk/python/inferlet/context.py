"""A context: a text whose keys and values stay in the server's KV pages; continue or fork it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from collections.abc import Sequence as List
from typing import Any, Literal, Self

from inferlet import _edit, raw
from inferlet._choice import Choosing, Rule
from inferlet._conversation import Conversation
from inferlet._drafts import Drafts
from inferlet._run import NO_GUESSES, Guessing
from inferlet._sequence import Sequence
from inferlet._several import (
    SCORED_AT_ONCE,
    Layout,
    Ranges,
    distributions,
    log_probabilities,
    tree,
)
from inferlet.branches import gather
from inferlet.device import Attend, ProgramSampler
from inferlet.errors import PieError
from inferlet.generation import Generator
from inferlet.grammar import Grammar
from inferlet.images import append_image
from inferlet.model import Model
from inferlet.raw._convert import as_text, as_u32, check_several, u32_array
from inferlet.sample import DISTRIBUTION_SIZE, Distribution, Sampler

MOST_GUESSES = 16  # of the server, at a time
# Of `generate`, what each argument is; others fail later, far from where they were written.
_WANTED: dict[str, tuple[Any, str]] = {
    "sampler": (Sampler | ProgramSampler, "a `Sampler(...)`, or a device program that was called"),
    "grammar": (Grammar, "a grammar, such as `Grammar.regex(text)`"),
    "max_tokens": (int, "a whole number"),
    "seed": (int, "a whole number"),
    "stop": (Iterable, "a list of token ids and strings, or one string"),
    "speculate": (int, "a whole number"),
    "attend": (Attend, "what a program of `inferlet.attention` or `device.attend` gives"),
    "layers": (Attend, "what a program of `inferlet.layers` or `device.layers` gives"),
}


class Context:
    """A text that grows: prompts are filled in, tokens are generated, forks share what is there.

    ::

        ctx = Context(Model.load())
        ctx.fill("The capital of France is")
        text = await ctx.generate(Sampler.argmax(), max_tokens=8).collect_text()

    What is filled in waits in a buffer until `flush` or the next generation, which runs it through
    the model. Full pages are never written again, so forks share them and copy only the last,
    partial page, when they first write to it. Commands of different contexts are batched together:
    run many with `asyncio.gather`; use one context from one task at a time.

    A context gives its pages back on `release`, at the end of a `with` block, or when it is no
    longer referenced.

    Attributes:
        sequence: what lies below the texts: tokens, pages, commands. For programs that combine a
            context with functions of `raw`; what it offers may change.
    """

    __slots__ = ("__weakref__", "_add_bos", "_chat", "sequence")

    def __init__(
        self,
        model: Model,
        *,
        add_bos: bool = True,
        adapter: str | None = None,
        prefix_cache: bool = True,
        first_position: int = 0,
        chat: Mapping[str, Any] | None = None,
    ) -> None:
        """Makes an empty context.

        Args:
            model: the model that is to continue it.
            add_bos: whether `fill` starts an empty context with the model's beginning-of-sequence
                token, if its tokenizer does so (`model.bos_token`).
            adapter: LoRA adapter that everything goes through, one of `model.adapters`.
            prefix_cache: whether to begin with what this user's inferlets have computed of the same
                text, and to let them find what is computed here. Full pages then can't be changed
                by functions of `raw`.
            first_position: position of the first token. Contexts that are to be opened one behind
                another (Prompt Cache) each have positions of their own.
            chat: what else the chat template takes: `tools`, `documents`,
                `enable_thinking`, ...; `chat_template` names one of several templates.
        """
        if isinstance(model, str):
            raise TypeError(f"model={model!r:.60}: `Model.load(name)` is wanted")
        if not isinstance(chat, Mapping | None):
            raise TypeError(f"chat={chat!r:.60}: a dict is wanted; `ctx.user(text)` is a message")
        self.sequence = Sequence(model, adapter, prefix_cache)
        self.sequence.shift = as_u32(first_position)
        self._add_bos = add_bos
        self._chat = Conversation(model, chat)

    # What is in it

    @property
    def model(self) -> Model:
        """The model."""
        return self.sequence.model

    @property
    def weights_version(self) -> str:
        """The version of the weights that compute its next token, as `raw.weights_version` tells:
        of its adapter the hash that `upload_adapter` has returned, empty of an operator's; of the
        model, behind a `+` if there is an adapter, empty until the operator has replaced them.
        `generation.versions` has that of each token.
        """
        return raw.weights_version(self.model.name, self.sequence.adapter or "")

    @property
    def page_size(self) -> int:
        """Tokens that fit into a page."""
        return self.sequence.pages.size

    @property
    def pages(self) -> list[int]:
        """Handles of its KV pages, in order; forks have those in common that they share."""
        return list(self.sequence.pages.addresses)

    @property
    def queue(self) -> int:
        """Its command queue, for functions of `raw`."""
        return self.sequence.queue

    @property
    def seq_len(self) -> int:
        """Tokens in the pages; those of `buffer` are not among them."""
        return len(self.sequence.tokens)

    @property
    def next_position(self) -> int:
        """Position of the token that comes next; less than the model's `max_position`."""
        return len(self) + self.sequence.shift

    @property
    def tokens(self) -> list[int]:
        """All tokens, buffered ones included. Those of an opened context are -1."""
        self._render()
        return self.sequence.tokens + self.sequence.pending

    def buffer(self) -> list[int]:
        """Tokens that wait for the next `flush` or generation."""
        self._render()
        return list(self.sequence.pending)

    def __len__(self) -> int:
        self._render()
        return len(self.sequence)

    def __repr__(self) -> str:
        return f"Context({self.model.name!r}, {self.seq_len} tokens)"

    # Filling

    def fill(self, text: str) -> Context:
        """Appends text. Special tokens written in it are recognised."""
        self._render()
        tokens, bos = self.model.tokenizer.encode(text), self.model.bos_token
        if self._add_bos and not len(self.sequence) and bos is not None and tokens[:1] != [bos]:
            self.sequence.pending.append(bos)
        self.sequence.pending += tokens
        self._chat.unanswered = False
        return self

    def append(self, tokens: Iterable[int]) -> Context:
        """Appends tokens as they are."""
        self._render()
        self.sequence.pending += u32_array(tokens)  # bytes are tokens, too
        self._chat.unanswered = False
        return self

    async def image(self, data: bytes) -> None:
        """Runs what is buffered, and then an image file, after it.

        It takes as many tokens' places as `images.tokens_of` says, and these tokens are -1; in some
        models it takes fewer positions (`next_position`). Models differ in the text that they
        expect around an image: fill it in.

        Raises:
            PieError: `unsupported` if the model reads text only, `invalid-argument` if the file
                can't be decoded (the context is as it was, flushed), `out-of-resources`.
        """
        self._render()
        await append_image(self.sequence, data)
        self._chat.unanswered = False

    def system(self, message: str) -> Context:
        """Appends a system message in the model's chat format."""
        return self.message("system", as_text(message))

    def user(self, message: str) -> Context:
        """Appends a user message in the model's chat format."""
        return self.message("user", as_text(message))

    def assistant(self, message: str) -> Context:
        """Appends an assistant message in the model's chat format (a turn of the past)."""
        return self.message("assistant", as_text(message))

    def cue(self) -> Context:
        """Appends the start of the assistant's turn; `generate` does so itself after a message."""
        self._go_on(cue=True)
        return self

    def seal(self) -> Context:
        """Ends the assistant's turn with the model's stop token."""
        self._render()
        self.sequence.pending += self.model.stop_tokens[:1]
        return self

    def message(self, role: str, content: Any = None, **fields: Any) -> Context:
        """Appends a message with all that its role has, such as a tool's result.

        ::

            ctx.message("tool", "21 °C", name="weather")

        Args:
            role: as the template knows it.
            content: a text, or what else the template takes.
            fields: `tool_calls`, `name`, `reasoning_content`, ...
        """
        message = {"role": role, "content": content, **fields}
        self._chat.add(message, self.sequence.tokens + self.sequence.pending)
        return self

    @property
    def recomputed(self) -> int:
        """Tokens that were cut off since the chat template changed what it had written of them.

        Some templates leave past thinking out, or move the system message to the last turn.
        """
        return self._chat.recomputed

    def _go_on(self, *, cue: bool) -> None:
        """Makes the context what the chat template makes of the conversation."""
        sequence = self.sequence
        keep, new = self._chat.render(cue=cue, tokens=sequence.tokens + sequence.pending)
        if keep < len(sequence):
            sequence.truncate(keep)
        sequence.pending += new

    def _start_turn(self) -> None:
        """Starts the assistant's turn after a message."""
        if self._chat.unanswered:
            self.cue()

    def _render(self) -> None:
        """Turns the messages that wait into tokens."""
        if self._chat.waiting:
            self._go_on(cue=False)

    # Running the model

    async def flush(self) -> None:
        """Runs what is buffered through the model, and waits until it is in the pages.

        Raises:
            PieError: `out-of-resources` if there are not enough pages or embeds.
        """
        self._render()
        await self.sequence.flush()

    def generate(
        self,
        sampler: Sampler | ProgramSampler | None = None,
        *,
        max_tokens: int | None = None,
        stop: Iterable[int | str] | str | None = None,
        seed: int | None = None,
        grammar: Grammar | None = None,
        forced: bool = True,
        run_ahead: bool = True,
        beside: List[Context] = (),
        choose: Rule | None = None,
        speculate: int | None = None,
        like: Iterable[int] = (),
        drafter: Context | Literal["jacobi"] | None = None,
        attend: Attend | None = None,
        layers: Attend | None = None,
    ) -> Generator:
        """Continues the context.

        Args:
            sampler: how the server chooses tokens; by default always the most likely one; also what
                a `device.program` gives.
            max_tokens: most tokens to generate; by default up to the model's longest context.
            stop: token ids and strings that end the generation, or one string; by default the
                model's stop tokens. With any given, the model's own no longer apply unless listed:
                `stop=["END", *model.stop_tokens]`. They are not part of the output.
            seed: makes the choices repeatable; overrides the sampler's. It counts modulo 2^64.
            grammar: what the text has to look like; the server then chooses. Generation ends where
                the grammar does. With too few `max_tokens` the text is cut short.
            forced: whether tokens that the grammar leaves no choice of are taken without asking the
                model; it then runs several at once.
            run_ahead: whether the server is given each step before the token of the one before has
                arrived, so that the model does not wait for the inferlet. The output is the same;
                at a stop one step is wasted and rolled back. Where each token is needed
                first (a grammar, steps that the program looks at) this makes no difference.
            beside: other contexts, of this model or one with the same tokens. A device program
                reads the logits of each (`device.beside`); they get the same tokens.
            choose: a rule of your own instead of a sampler: called for each token with the 256 most
                likely tokens, most likely first, and their probabilities at temperature 1, it
                returns the token to go on with. An object that is called may keep what it has
                seen; a context's own tokens are at hand as `ctx.tokens`.
            speculate: how many tokens the server may guess at a time, 1 to 16: what came after the
                last ones where they came before in the context (prompt lookup). The model checks
                guesses in one step, so the output is the same, at any temperature, and comes sooner
                where it repeats: edits of code, quotes. It makes no difference where each token is
                needed first, with penalties, device programs that have state or look at the text,
                and recurrent models.
            like: tokens of other texts that this one may repeat (a file that is edited, earlier
                answers), among which `speculate` looks, too: the last of them, as many as the
                model's context holds beside this one's.
            drafter: what guesses, if not prompt lookup: a context of a smaller model with the same
                tokens, whose text becomes this one's; or "jacobi": what the model said behind its
                first wrong guess of the step before, so that each step improves all guesses. That
                is for models that were trained for it (CLLM), and leaves off where it does not pay.
            attend: what layers read of the context, as `inferlet.attention` and `device.attend`
                give it, beginning with the first generated token. It follows the tokens that are
                chosen, so not with `accept`; and no token is `forced`, for each one is read by
                itself.
            layers: a program in the layers, as `inferlet.layers` and `device.layers` give it, under
                the same rules, and not with `attend`.

        Returns:
            A generator; see there for the ways to read it. Nothing runs before it is read. Reading
            raises PieError `invalid-argument` if the context is longer than the model's longest,
            and RuntimeError if another generation of this context is under way.
        """
        all_given = (sampler, grammar, max_tokens, seed, stop, speculate, attend, layers)
        for name, given in zip(_WANTED, all_given, strict=True):
            kind, wanted = _WANTED[name]
            if not isinstance(given, kind | None):
                raise TypeError(f"{name}={given!r:.80}: {wanted} is wanted")
        if choose is not None and beside:
            raise ValueError(
                "`choose` gets what one context says, and `beside` is for a device program: leave"
                " one out, or choose by the `distribution()` of each, and `fill`"
            )
        if choose is not None and (sampler, seed) != (None, None):
            raise ValueError("`choose` takes the place of a sampler and its seed")
        sampler = sampler or Sampler.argmax()
        if seed is not None:
            sampler = sampler.seeded(seed)
        for other in beside:
            other._start_turn()
        others = tuple(other.sequence for other in beside)
        if not 0 <= (speculate or 0) <= MOST_GUESSES:
            raise ValueError(f"speculate={speculate}: 1 to {MOST_GUESSES} tokens can be guessed")
        like = tuple(like)
        if drafter is not None and (not speculate or like):
            raise ValueError("a drafter goes with `speculate`, and takes the place of `like`")
        guessing, drafts = Guessing(speculate or 0, like, drafter == "jacobi"), None
        if isinstance(drafter, Context):
            if drafter is self:
                raise ValueError("a context can't draft for itself; take one of a smaller model")
            guessing, drafts = NO_GUESSES, Drafts(drafter.sequence, speculate or 0)
        elif drafter not in (None, "jacobi"):
            raise ValueError(f'drafter={drafter!r}: it is a context, or "jacobi"')
        if attend is not None and layers is not None:
            raise ValueError("`attend` and `layers`: a generation has one of them")
        within = attend or layers
        choosing = Choosing(sampler, grammar, forced, others, choose, guessing, drafts, within)
        # Within a grammar the server needs each token before it can say what may follow.
        return Generator(
            self.sequence,
            self._start_turn,
            choosing,
            max_tokens,
            stop,
            run_ahead=run_ahead and grammar is None,
        )

    async def distribution(self, k: int = DISTRIBUTION_SIZE) -> Distribution:
        """The `k` most likely next tokens after all that is filled in.

        Raises:
            ValueError: if the context is empty.
        """
        self._render()
        return await self.sequence.next_distribution(k)

    async def forward(
        self,
        tokens: Iterable[int],
        k: int = DISTRIBUTION_SIZE,
        *,
        parents: List[int] | None = None,
        mask: List[Ranges] | None = None,
        positions: Iterable[int] | None = None,
    ) -> list[Distribution]:
        """Runs tokens at once, and returns what may follow each: the `k` most likely tokens.

        They join the context, behind what is filled in; `truncate` takes back those that turn out
        wrong, and moves nothing (`verify` does both).

        Args:
            tokens: what follows; as many as the model takes in one forward (`max_batch_tokens`)
                where it is no plain text.
            k: how many likely tokens of each distribution.
            parents: makes a tree of the tokens: for each the number of the one that it follows; -1
                for one that follows the context. `keep` makes text of one of its paths.
            mask: for each token the stretches of the context that it attends to, `(from, up to)`,
                its own place included; by default all before and itself.
            positions: of the tokens; by default one after the other, in a tree by depth.

        Raises:
            ValueError: arguments that disagree in length, or a tree that is none.
            PieError: `out-of-resources`, `limit-exceeded`, `invalid-argument` (positions).
        """
        self._render()
        sequence, tokens = self.sequence, u32_array(tokens).tolist()
        layout = Layout(None if positions is None else list(positions), mask)
        if parents is not None:
            layout = tree(parents, len(sequence), sequence.shift)
        parts = parents, layout.positions, layout.mask
        if any(len(part) != len(tokens) for part in parts if part is not None):
            raise ValueError(
                f"parents, mask and positions are each for all of {len(tokens)} tokens"
            )
        self._chat.unanswered = False
        return await distributions(sequence, tokens, k, layout) if tokens else []

    async def verify(self, draft: Iterable[int]) -> list[int]:
        """Runs a draft at once, and keeps as much of it as greedy decoding would have written.

        So one forward gives one token or more, and the text is that of greedy decoding, but for
        tokens that are all but equally likely: batches of another shape round in another way.

        Args:
            draft: tokens that may follow; what does not fit into the model's context is left out.

        Returns:
            The tokens kept, and the one that follows them, which waits in the buffer.

        Raises:
            ValueError: the context is empty.
            PieError: as of `forward`; the context is as it was then.
        """
        self._render()
        sequence = self.sequence
        sequence.retract()
        tokens = u32_array(draft).tolist()[: max(0, self.model.max_position - self.next_position)]
        if not sequence.pending:
            sequence.rerun_last(len(sequence.tokens))
        if not sequence.pending:
            raise ValueError("nothing to continue from: fill something into the context first")
        last = sequence.pending.pop()
        before = len(sequence)
        try:
            found = await self.forward([last, *tokens], 1)
        except BaseException:
            if len(sequence) > before:  # it was cancelled
                sequence.truncate(before + 1)
            else:
                sequence.pending.append(last)
            raise
        likely = [each.tokens[0] for each in found]
        good = next((i for i, t in enumerate(tokens) if t != likely[i]), len(tokens))
        sequence.truncate(len(sequence) - len(tokens) + good)
        sequence.pending.append(likely[good])
        return [*tokens[:good], likely[good]]

    async def score(self, continuations: Iterable[str | Iterable[int]]) -> list[list[float]]:
        """Log-probabilities of texts that might follow, a number for each token of each text.

        They run on forks, 32 at once; the context stays as it is. The model finds the text most
        likely whose `sum` is largest; `sum / len` does not favour short ones.

        Args:
            continuations: texts, or their tokens.

        Raises:
            ValueError: the context is empty, or a continuation is.
        """
        check_several("continuations", continuations)
        self._render()
        encode = self.model.tokenizer.encode
        texts = [encode(c) if isinstance(c, str) else u32_array(c).tolist() for c in continuations]
        if not all(texts):
            raise ValueError("an empty continuation has no log-probability")
        if self.sequence.pending[1:]:
            await self.sequence.submit()  # once, for all of them
        found = []
        for start in range(0, len(texts), SCORED_AT_ONCE):
            some = texts[start : start + SCORED_AT_ONCE]
            forks = [self.sequence.fork() for _ in some]
            try:
                found += await gather(*map(log_probabilities, forks, some))
            finally:
                for fork in forks:
                    fork.release()
        return found

    # Branching and keeping

    def fork(self) -> Self:
        """A second context with the same content, that shares the pages.

        If it generates at once, it runs the last token again, for a hidden state of its own.

        Raises:
            ValueError: the context is released.
        """
        return self._of(self.sequence.fork(), self._add_bos, self._chat.copy())

    def join(self, *branches: Context) -> Context:
        """Goes on with what forks of this context have added, one behind the other.

        The pages of the first are taken over; the tokens of the others run with the next flush or
        generation. The branches are released, and the conversation is forgotten, as by `truncate`.

        Raises:
            ValueError: there is no branch, or one does not begin with the tokens of this context.
        """
        mine = self.tokens
        added = [branch.tokens[len(mine) :] for branch in branches]
        if not branches or any(b.tokens[: len(mine)] != mine for b in branches):
            raise ValueError("branches to join are forks of the context, and go on where it ends")
        first = branches[0]
        self._chat = Conversation(self.model, self._chat.arguments)
        self.sequence, first.sequence = first.sequence, self.sequence
        for branch in branches:
            branch.release()
        return self.append(token for tokens in added[1:] for token in tokens)

    @classmethod
    def _of(cls, sequence: Sequence, add_bos: bool, chat: Conversation) -> Self:
        """A context around a sequence that exists."""
        context = cls.__new__(cls)
        context.sequence = sequence
        context._add_bos = add_bos
        context._chat = chat
        return context

    def truncate(self, length: int) -> Context:
        """Keeps the first `length` tokens only.

        Chat messages that wait are rendered first: their tokens count, and stay if `length` covers
        them. The conversation is forgotten: the next message starts a new one. A cut in a page that
        only this context holds moves nothing; a shared page is copied when it is next written.

        Raises:
            ValueError: there are fewer tokens.
        """
        if not 0 <= length <= len(self):
            raise ValueError(f"length {length} is outside this context of {len(self)} tokens")
        self._chat = Conversation(self.model, self._chat.arguments)
        self.sequence.truncate(length)
        return self

    # Changing what later tokens attend to

    def keep(self, first: int, path: List[int]) -> Context:
        """Keeps the first tokens and one path of the tree behind them; nothing runs again.

        Args:
            first: how many tokens were there before the tree.
            path: numbers of the tree's tokens that stay, as `parents` counts them, rising.

        Raises:
            ValueError: the path does not rise, or leads out of the tree.
        """
        _edit.keep(self.sequence, first, [first + number for number in path])
        return self

    def drop(self, first: int, last: int, *, close: bool = False) -> Context:
        """Gives the pages of the tokens from `first` up to `last` back, whole pages of them.

        Nothing attends to them any more. The tokens behind them move up in `tokens`, and keep their
        positions, as later tokens do; or, with `close`, get those that they have in `tokens` now.
        So a text without an end stays within the model's context (StreamingLLM).

        Raises:
            ValueError: these are no whole pages of what has run; with `close`, they begin or end
                within an image that takes fewer positions than tokens.
            PieError: with `close`: `unsupported` by models whose keys can't be turned to other
                positions, `out-of-resources` for copies of pages that others hold, too.
        """
        _edit.drop(self.sequence, first, last, close=close)
        return self

    def evict(self, places: Collection[int]) -> Context:
        """Gives up the tokens at some places, wherever they are, and the memory that they took.

        The others are copied together, and keep their positions.

        Raises:
            ValueError: a place is not among what has run.
            PieError: `out-of-resources`: a page that others hold, too, is copied.
        """
        _edit.evict(self.sequence, places)
        return self

    def hide(self, first: int, last: int) -> Context:
        """Lets later tokens not attend to those from `first` up to `last`, which stay.

        Raises:
            ValueError: these have not run yet, or are not there.
            PieError: `out-of-resources`: a page that others hold, too, is copied.
        """
        _edit.hide(self.sequence, first, last, hidden=True)
        return self

    def show(self, first: int, last: int) -> Context:
        """Takes `hide` back. Raises as it does."""
        _edit.hide(self.sequence, first, last, hidden=False)
        return self

    def retain(
        self, priority: int, seconds: float = 3600.0, *, first: int = 0, last: int | None = None
    ) -> Context:
        """Says what the pages are worth when memory is short: a hint to the server.

        Of your pages, those with a lower priority leave the prefix cache first, and move to host
        memory first while their instances wait; 0 is that of pages of which nothing was said. It
        stays with the pages, also after the context is released. A prefix is of no use without what
        is before it, so name that, too.

        Args:
            priority: -100 to 100.
            seconds: how long one above 0 holds. One below 0 holds until the text is used again.
            first: the first token of what has run that is meant.
            last: the one after the last; None: to the end.

        Raises:
            PieError: `invalid-argument`, `swapped-out`.
        """
        self.sequence.retain(priority, seconds, slice(first, last))
        return self

    def save(self, name: str, *, shared: bool = False, seconds: float | None = None) -> None:
        """Keeps the pages under a name, for `open` in this and other instances, until `delete`.

        Args:
            name: the name, unique among this user's.
            shared: whether other users may open it.
            seconds: after how long without an `open` the saved context ends; by default what the
                operator allows (`quota.export_seconds`).

        Raises:
            ValueError: if something is buffered (`flush` first) or the context is empty.
            PieError: `already-exists`, `limit-exceeded` (too many, or too long; nothing is saved).
        """
        if self.buffer():
            raise ValueError("some tokens are not in the pages yet: `await ctx.flush()` first")
        if not self.seq_len:
            raise ValueError("an empty context can't be saved")
        self.sequence.save(name, shared=shared, seconds=seconds)

    @classmethod
    def open(
        cls,
        model: Model,
        *names: str,
        adapter: str | None = None,
        next_position: int | None = None,
    ) -> Self | None:
        """A context with the content saved under names, one behind the other; None if one is not
        there. The saved ones stay as they are.

        Its tokens are not known, so something has to be filled in before it generates. Name the
        adapter that the saved ones had.

        Args:
            model: the model.
            names: what to open. From the first one on that ends in the middle of a page, slots are
                copied; pages before that are shared.
            adapter: LoRA adapter that the saved ones went through, and the rest goes through.
            next_position: position of what is filled in; by default the number of tokens. Parts
                with positions of their own, or dropped tokens, or images that take fewer positions
                than tokens, end elsewhere: pass what `next_position` was.
        """
        context = cls._of(Sequence(model, adapter, True), True, Conversation(model))
        try:
            for name in names:
                context.sequence.load(name)
        except PieError as error:
            if error.code != "not-found":
                raise
            return None
        if next_position is not None:
            context.sequence.shift = next_position - len(context)
        return context

    @classmethod
    def take(cls, model: Model, name: str) -> Self | None:
        """`open`, and `delete` the name."""
        context = cls.open(model, name)
        if context is not None:
            cls.delete(model, name)
        return context

    @staticmethod
    def delete(model: Model, name: str) -> None:
        """Withdraws a saved context. Contexts opened from it stay.

        Raises:
            PieError: `not-found`.
        """
        queue = raw.create_queue(model.name)
        try:
            raw.release_export(queue, name)
        finally:
            raw.destroy_queue(queue)

    @staticmethod
    def saved(model: Model) -> list[str]:
        """Names of the saved contexts that may be opened."""
        queue = raw.create_queue(model.name)
        try:
            return raw.list_exports(queue)
        finally:
            raw.destroy_queue(queue)

    # Its end

    def release(self) -> None:
        """Gives the pages back. The context can't be used any more; a second call does nothing."""
        self.sequence.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

"""Compiled code of the programs that ran last: an LRU cache."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
import trio
from cachetools import LRUCache

from pie_control.confined.pool import ConfinedPool, JobStopped
from pie_control.errors import ApiError, ProgramRejected
from pie_control.fairness import Owner
from pie_control.programs.optimizing import optimize_beside
from pie_control.programs.store import DAMAGED, DamagedProgram, read_blob
from pie_control.wasm.cache import digest_of_file
from pie_control.wasm.engine import Component, Engine, compile_file
from pie_control.wasm.written_pages import WrittenPages
from pie_py.build import BuildError
from pie_py.build.image import memory_instance
from pie_py.build.runtimes import RUNTIMES

if TYPE_CHECKING:
    from pie_control.programs.store import Program

log = structlog.get_logger("pie.server")

# A small one in Rust takes 0.7 MB, and is mapped from the cache again in a few milliseconds.
MOST_KEPT = 64
# What a runtime takes, and then the code made of it, which is written twice.
_RUNTIME_BYTES, _COMPILED_BYTES = 80 << 20, 160 << 20
# Its build takes packages from npm's registry: the operator starts that, and no user's upload.
_BUILT_AHEAD = ("javascript",)
_LANGUAGES = {"javascript": "JavaScript", "python": "Python"}


class Components:
    """The components that programs run in: their own, or the runtime that all sources of a language
    share."""

    def __init__(
        self,
        engine: Engine,
        cache_folder: Path,
        on_runtime: Callable[[Component], None],
        confined: ConfinedPool,
        most: int = MOST_KEPT,
    ) -> None:
        """Loads nothing yet. The engine has a cache folder; in `cache_folder` are the runtimes once
        they are built. At most so many components are in memory beyond the runtimes; an instance
        holds its own while it runs.
        """
        self._engine = engine
        self._cache_folder = cache_folder
        self._on_runtime = on_runtime
        self._confined = confined
        self._runtimes: dict[str, Component] = {}  # by the kind of program
        self._ahead: dict[str, Component] = {}  # likewise; no program has needed it yet
        self._own: LRUCache[str, Component] = LRUCache(most)  # by content hash
        self.doing: list[str] = []  # what is made once and takes long, for a person
        self._loading: dict[str, trio.Lock] = {}  # by the same, or the kind

    def __len__(self) -> int:
        return len(self._own) + len(self._runtimes)

    def find(self, program: Program) -> Component | None:
        """The component that a program runs in, if it is loaded."""
        if program.kind in RUNTIMES:
            return self._runtimes.get(program.kind)
        return self._own.get(program.hash)

    async def load_ahead(self, *, compiled: bool = False) -> None:
        """Reads the Python runtime if it has been compiled, while a server starts: the first
        program does not wait for it then. Until that program comes no instance is started for it.

        Builds and compiles it if that is asked for. By the fast compiler it compiles one that is
        there: the server is for a program that needs it then, or for one in another language.
        """
        async with self._loading.setdefault("python", trio.Lock()):
            if "python" in self._ahead or "python" in self._runtimes:
                return
            found = await trio.to_thread.run_sync(self._find_runtime, compiled)
            if found is not None:
                self._ahead["python"] = found

    async def load(self, program: Program) -> Component:
        """As `find`; loads the component if needed, and compiles or builds it the first time.

        Raises:
            ProgramRejected: if it cannot run here.
            ApiError: `out-of-resources` if there is no room for its compiled code.
        """
        component = self.find(program)
        if component is not None:
            return component
        key = program.kind if program.kind in RUNTIMES else program.hash
        lock = self._loading.setdefault(key, trio.Lock())
        try:
            async with lock:
                component = self.find(program)  # another may have loaded it
                if component is None:
                    component = await self._read(program)
                    self._keep(program, component)
                return component
        finally:
            if not (lock.locked() or lock.statistics().tasks_waiting):
                self._loading.pop(key, None)

    async def _read(self, program: Program) -> Component:
        if (ahead := self._ahead.pop(program.kind, None)) is not None:
            return ahead
        if program.kind in RUNTIMES:
            return await trio.to_thread.run_sync(self._read_runtime, program.kind)
        found = await trio.to_thread.run_sync(self._find_compiled, program)
        if found is None:
            await self._compile(program)
            found = await trio.to_thread.run_sync(self._find_compiled, program)
        if found is None:
            raise self._is_full()
        return found

    def _is_full(self) -> ApiError:
        return ApiError(
            "out-of-resources",
            f"no room for compiled code in {self._cache_folder}: the operator has to make some, or"
            " to set another `cache_folder`",
        )

    def _read_runtime(self, kind: str) -> Component:
        file: Path = RUNTIMES[kind].runtime_file(self._cache_folder)
        if kind in _BUILT_AHEAD and not file.is_file():
            raise ProgramRejected(
                f"this server has no runtime for {_LANGUAGES[kind]} yet: on its machine,"
                f" `pie-py build --runtime {kind}` builds it once, while the server runs"
            )
        is_built = file.is_file()
        try:
            self._check_room(0 if is_built else _RUNTIME_BYTES)
            with self._doing(f"building the {_LANGUAGES[kind]} runtime", is_done=is_built):
                file = RUNTIMES[kind].runtime_component(self._cache_folder)
            data = file.read_bytes()
            component = self._engine.find(data)
            if component is None:
                self._check_room(_COMPILED_BYTES)
                seconds = 2 if self._engine.config.baseline else 10
                with self._doing(f"compiling the {_LANGUAGES[kind]} runtime", seconds):
                    component = self._engine.load(data)
                if self._engine.config.baseline:
                    optimize_beside(file, self._engine.config)
        except BuildError as error:
            raise ProgramRejected(f"no {kind} runtime on the server: {error}") from None
        except OSError as error:
            log.error("a runtime cannot be kept", folder=self._cache_folder, problem=str(error))
            raise self._is_full() from None
        component.written = WrittenPages(memory_instance(data))
        return component

    def _check_room(self, needed: int) -> None:
        """Refuses at once what would fail after a minute of work, for each program again."""
        self._cache_folder.mkdir(parents=True, exist_ok=True)
        if needed and shutil.disk_usage(self._cache_folder).free < needed:
            raise self._is_full()

    @contextmanager
    def _doing(self, text: str, seconds: int = 10, *, is_done: bool = False) -> Iterator[None]:
        if is_done:
            yield
            return
        text += f" (once, about {seconds} s)"
        log.info(text)
        self.doing.append(text)
        try:
            yield
        finally:
            self.doing.remove(text)

    def _find_runtime(self, compiled: bool) -> Component | None:
        try:
            file: Path = RUNTIMES["python"].runtime_file(self._cache_folder)
            if compiled and not file.is_file():
                return self._read_runtime("python")
            with file.open("rb") as opened, mmap(opened.fileno(), 0, access=ACCESS_READ) as data:
                component = self._engine.find(data, digest_of_file(file))
                if component is not None:
                    component.written = WrittenPages(memory_instance(data))
            if component is None and (compiled or self._engine.config.baseline):
                return self._read_runtime("python")
        except (OSError, ValueError, ApiError, ProgramRejected):  # a program says so, if it comes
            return None
        return component

    def _find_compiled(self, program: Program) -> Component | None:
        try:
            return self._engine.find(read_blob(program.path, program.hash))
        except (DamagedProgram, FileNotFoundError):
            raise ProgramRejected(f"{program.name} {DAMAGED}") from None

    async def _compile(self, program: Program) -> None:
        config = self._engine.config
        try:
            await self._confined.call(
                Owner(program.uploaded_by, ""),
                program.name,
                compile_file,
                program.path,
                config.memory_bytes,
                config.table_elements,
                str(config.cache_folder),
                config.source_lines,
                config.baseline,
                # 1 MB takes a fast core 1 s, a small board 10.
                seconds=60.0 + 20.0 * program.size / 1e6,
            )
        except JobStopped as error:
            raise ProgramRejected(f"{error.message} to compile: make it smaller") from None

    def _keep(self, program: Program, component: Component) -> None:
        if program.kind in RUNTIMES:
            self._runtimes[program.kind] = component
            if program.kind == "python":
                self._on_runtime(component)
        else:
            self._own[program.hash] = component

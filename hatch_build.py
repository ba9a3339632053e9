"""Makes the generated files, and what a user's first start would build: the Python runtime, its
code, the kernels. A wheel has them all; a checkout has the runtime and this CPU's kernels in its
folder `build`, and makes them again if their sources have changed.
"""

import platform
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

RUNTIMES = "pie_py/_share/runtimes"
KERNELS = "pie_py/_share/kernels"


class Hook(BuildHookInterface):
    """Builds all from the sources that the package is made of."""

    _folder: TemporaryDirectory[str] | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Of an sdist the generated files are all that is made."""
        sys.path[:0] = [
            self.root,
            *(str(Path(self.root, one)) for one in ("sdk/python", "inference", "control")),
        ]
        from codegen import ensure

        ensure()
        if self.target_name != "wheel":
            return
        if version == "editable":
            self._prepare(Path(self.root, "build"))
            return
        from pie_py.build.python import runtime_component

        self._folder = TemporaryDirectory()  # the wheel is written after this
        built = runtime_component(Path(self._folder.name))
        build_data["force_include"][str(built)] = f"{RUNTIMES}/{built.name}"
        machine = self._add_kernels(Path(self._folder.name), build_data)
        if machine == platform.machine():
            self._add_code(built, build_data)
        elif machine is not None:
            self.app.display_warning(f"no code of the runtime in the wheel: {machine} makes it")

    def _prepare(self, folder: Path) -> None:
        """A start makes what cannot be made here, or says why it cannot."""
        try:
            from pie_inference.layers.variants import NoLibrary, compiled_library
            from pie_py.build import BuildError
            from pie_py.build.python import runtime_component
        except ImportError as error:  # without the build's own environment
            self.app.display_warning(f"a first start will take longer: {error}")
            return
        for name in ("runtimes", "kernels"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor() as pool:
            made = [
                pool.submit(runtime_component, folder / "runtimes"),
                pool.submit(compiled_library, [folder / "kernels"], print),
            ]
        for one in made:
            try:
                one.result()
            except (BuildError, NoLibrary, OSError, subprocess.SubprocessError) as error:
                self.app.display_warning(f"a first start will take longer: {error}")

    def _add_code(self, runtime: Path, build_data: dict[str, Any]) -> None:
        """The runtime's code, which a first start would take 10 s for."""
        from pie_control.wasm.engine import portable_code

        name, code = portable_code(runtime.read_bytes())
        assert self._folder is not None
        file = Path(self._folder.name, name)
        file.write_bytes(code)
        build_data["force_include"][str(file)] = f"{RUNTIMES}/{name}"

    def _add_kernels(self, folder: Path, build_data: dict[str, Any]) -> str | None:
        """The machine that the wheel is for. Without a compiler that knows all its CPUs the wheel
        stays pure: users compile.
        """
        from pie_inference.layers.variants import (
            SOURCE,
            compile_library,
            find_compiler,
            variant_flags,
            variants_of,
        )

        compiler = find_compiler()
        names = variants_of(compiler) if compiler and sys.platform == "linux" else []
        if compiler is None or not names:
            self.app.display_warning("no kernels in the wheel: it takes cc for Linux")
            return None
        built = {name: folder / f"{name}.so" for name in names}
        try:
            for name, file in built.items():
                compile_library(compiler, variant_flags(name), SOURCE, file)
        except (OSError, subprocess.SubprocessError) as error:
            self.app.display_warning(f"no kernels in the wheel: {compiler} says: {error}")
            return None
        for file in built.values():
            build_data["force_include"][str(file)] = f"{KERNELS}/{file.name}"
        build_data["pure_python"] = False
        machine = "aarch64" if names == ["arm64"] else "x86_64"
        build_data["tag"] = f"py3-none-linux_{machine}"
        return machine

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Removes what was built for it."""
        if self._folder is not None:
            self._folder.cleanup()

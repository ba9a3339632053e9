"""The component that travels with the package is what its sources build.

What was found so is kept in the user's cache, by all that goes into it: a build takes a minute.
"""

from __future__ import annotations

import hashlib

import pytest
from support.rust_components import sources_hash, use_toolchain

from codegen.components import COMPILER, COMPONENTS, build, compiler
from codegen.source import REPOSITORY
from pie_py.config.kept_files import cache_folder


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("path", COMPONENTS)
def test_component_is_what_its_sources_build(path: str) -> None:
    use_toolchain()
    if compiler() != (REPOSITORY / COMPILER).read_text().strip():
        pytest.skip("another compiler makes other bytes")
    crate, shipped = REPOSITORY / COMPONENTS[path], (REPOSITORY / path).read_bytes()
    builder = (REPOSITORY / "codegen/components.py").read_bytes()
    made_of = f"{sources_hash(crate)} {compiler()}".encode() + builder + shipped
    found = cache_folder() / "shipped" / hashlib.sha256(made_of).hexdigest()
    if not found.exists():
        assert build(crate) == shipped, "run `python -m codegen.components`"
        found.parent.mkdir(parents=True, exist_ok=True)
        found.touch()

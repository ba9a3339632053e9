"""Writes the code that follows from other code: most of it from the contract,
`sdk/wit/inferlet.wit`.

    python -m codegen [--check]

Each generated file is one entry of `OUTPUTS`: its path in the repository, and the function that
returns its text. The files are checked in; a test fails when one of them differs from what its
function returns.
"""

from codegen.outputs import OUTPUTS, stale, write
from codegen.source import REPOSITORY

__all__ = ["OUTPUTS", "REPOSITORY", "stale", "write"]

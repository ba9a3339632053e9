"""Writes the code that follows from other code: most of it from the contract,
`sdk/wit/inferlet.wit`.

Each generated file is one entry of `OUTPUTS`: its path in the repository, and the function that
returns its text. Git has none of them: an installation, a build and the tests make them
(`ensure`), and so does `python -m codegen`.
"""

from codegen.outputs import OUTPUTS, ensure
from codegen.source import REPOSITORY

__all__ = ["OUTPUTS", "REPOSITORY", "ensure"]

"""The components that sources run in: a record of a source names the one, a replay takes it."""

from __future__ import annotations

from types import ModuleType

from pie_py.build import javascript, python

# By the kind of program: modules with `runtime_file` and `runtime_component`.
RUNTIMES: dict[str, ModuleType] = {"python": python, "javascript": javascript}

"""From a program's source to a component."""


class BuildError(Exception):
    """A component could not be built; the text says why and how to mend it."""

"""From a program's source to a component."""

BUILD_SECONDS = 600.0  # that one build may take


class BuildError(Exception):
    """A component could not be built; the text says why and how to mend it."""

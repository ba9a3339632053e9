"""What can go wrong when an inferlet is built."""


class BuildError(Exception):
    """A component could not be built; the text says why and how to mend it."""

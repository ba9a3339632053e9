"""From a program's source to a component."""

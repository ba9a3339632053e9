"""Dialects: the ways in which families of models write calls and thoughts, and their reading."""

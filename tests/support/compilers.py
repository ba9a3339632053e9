"""A C compiler for tests that keeps what it has compiled."""

from __future__ import annotations

from pathlib import Path

KEEPING_CC = Path(__file__).with_name("cc")

"""Code that the Python runtime compiled, kept for later instances of the same program."""

from __future__ import annotations

from dataclasses import replace

from support.instances import Instances, failure

from pie_control.instances.instance import Instance
from pie_control.programs.code_cache import CodeCache


def _launch(instances: Instances, digest: str, name: str = "p") -> Instance:
    instance = instances.launch()
    instance.program = replace(instance.program, hash=digest, name=name)
    return instance


def test_code_is_found_by_content_and_file_name() -> None:
    cache, instances = CodeCache(), Instances()
    first = _launch(instances, "a")
    assert cache.find(first) == ""
    cache.keep(first, "code")
    assert cache.find(_launch(instances, "a")) == "code"
    assert cache.find(_launch(instances, "a", "q")) == ""
    assert cache.find(_launch(instances, "b")) == ""


def test_only_who_was_given_none_keeps_and_once() -> None:
    cache, instances = CodeCache(), Instances()
    first, second, third = (_launch(instances, "a") for _ in range(3))
    with failure("invalid-argument", "only the Python runtime"):
        cache.keep(first, "never asked")
    cache.find(first)
    cache.find(second)
    cache.keep(first, "")  # nothing to keep
    with failure("invalid-argument"):
        cache.keep(first, "again")
    cache.find(first)
    with failure("invalid-argument"):
        cache.keep(first, "after asking again")
    cache.keep(second, "code")
    assert cache.find(third) == "code"
    with failure("invalid-argument"):
        cache.keep(third, "was given it")


def test_what_is_used_least_makes_room() -> None:
    cache, instances = CodeCache(10), Instances()
    for digest in "abc":
        instance = _launch(instances, digest)
        cache.find(instance)
        cache.keep(instance, digest * 4)
        cache.find(_launch(instances, "a"))
    found = {digest: cache.find(_launch(instances, digest)) for digest in "abc"}
    assert found == {"a": "aaaa", "b": "", "c": "cccc"}
    large = _launch(instances, "d")
    cache.find(large)
    cache.keep(large, "d" * 11)
    assert cache.find(_launch(instances, "d")) == ""
    assert cache.find(_launch(instances, "a")) == "aaaa"

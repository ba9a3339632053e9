"""Code that the Python runtime compiled, kept for later instances of the same program."""

from __future__ import annotations

from dataclasses import replace

from support.instances import Instances, failure

from pie_control.instances.instance import Instance
from pie_control.programs.guests import CodeCache


def _launch(instances: Instances, digest: str, name: str = "p") -> Instance:
    instance = instances.launch()
    instance.program = replace(instance.program, hash=digest, name=name)
    return instance


def find(cache: CodeCache, instance: Instance) -> str:
    return cache.find(instance, instance.program)


def keep(cache: CodeCache, instance: Instance, code: str) -> None:
    cache.keep(instance, instance.program, code)


def test_code_is_found_by_content_and_file_name() -> None:
    cache, instances = CodeCache(), Instances()
    first = _launch(instances, "a")
    assert find(cache, first) == ""
    keep(cache, first, "code")
    assert find(cache, _launch(instances, "a")) == "code"
    assert find(cache, _launch(instances, "a", "q")) == ""
    assert find(cache, _launch(instances, "b")) == ""


def test_only_who_was_given_none_keeps_and_once() -> None:
    cache, instances = CodeCache(), Instances()
    first, second, third = (_launch(instances, "a") for _ in range(3))
    with failure("invalid-argument", "only the Python runtime"):
        keep(cache, first, "never asked")
    find(cache, first)
    find(cache, second)
    keep(cache, first, "")  # nothing to keep
    with failure("invalid-argument"):
        keep(cache, first, "again")
    find(cache, first)
    with failure("invalid-argument"):
        keep(cache, first, "after asking again")
    keep(cache, second, "code")
    assert find(cache, third) == "code"
    with failure("invalid-argument"):
        keep(cache, third, "was given it")


def test_what_is_used_least_makes_room() -> None:
    cache, instances = CodeCache(10), Instances()
    for digest in "abc":
        instance = _launch(instances, digest)
        find(cache, instance)
        keep(cache, instance, digest * 4)
        find(cache, _launch(instances, "a"))
    found = {digest: find(cache, _launch(instances, digest)) for digest in "abc"}
    assert found == {"a": "aaaa", "b": "", "c": "cccc"}
    large = _launch(instances, "d")
    find(cache, large)
    keep(cache, large, "d" * 11)
    assert find(cache, _launch(instances, "d")) == ""
    assert find(cache, _launch(instances, "a")) == "aaaa"

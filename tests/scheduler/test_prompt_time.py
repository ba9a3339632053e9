"""How long a batch takes with prompts of one user and work of others."""

from __future__ import annotations

from typing import Any

from support.prompts import Decoder, Prompt, Timed, forwards
from support.scheduler_fixtures import Guest, Server

from pie_py.config.keys import LOCAL_USER

FACTS: dict[str, Any] = {"kv_pages": 1400, "embeds": 11_000, "max_batch_tokens": 2048}


def timed(steps: float = 4.0, **settings: Any) -> Server:
    server = Server(**settings, **FACTS)
    server.worker = worker = Timed(server.facts)
    worker.steps = steps
    return server


def timed_parts(steps: float = 4.0, user: str = "bob", **settings: Any) -> list[float]:
    """Milliseconds of the forward batches with parts of a prompt of 1600 tokens beside a
    decoder.
    """
    server = timed(steps, **settings)
    decoder = Decoder(server)
    decoder.step()
    server.step()
    prompt = Prompt(Guest(server, server.launch(user)), [token % 100 for token in range(1600)])
    while not prompt.guest.ready(prompt.future):
        decoder.step(len(decoder.tokens) % 100)
        if len(decoder.tokens) == 16:
            decoder = Decoder(server)
            decoder.step()
        server.step()
    assert prompt.is_right()
    assert isinstance(server.worker, Timed)
    return [took for took in server.worker.took[1:] if took > steps]


def test_a_part_takes_no_longer_than_the_operator_says() -> None:
    took = timed_parts(prompt_tokens=512, prompt_ms=50.0)
    assert took[0] < 4 + 0.05 * 128 + 1, "nothing is known of prompts yet"
    assert max(took) < 100, "the second one tells how the cost grows with the context"
    assert max(took[2:]) < 60
    assert max(took[3:]) < 45
    assert sum(took[2:-1]) > 0.7 * 50 * len(took[2:-1]), "and what it may take is used"


def test_without_a_time_parts_are_as_long_as_their_inputs_take() -> None:
    assert max(timed_parts(prompt_tokens=512)) > 200


def test_prompts_have_as_long_as_the_steps_where_these_take_all_the_time() -> None:
    took = timed_parts(steps=100.0, prompt_tokens=512, prompt_ms=50.0)
    assert max(took[3:]) < 250, "a token takes about twice as long"
    assert len(took) < 25, "the prompt does not wait for a few inputs at a time"
    took = timed_parts(prompt_tokens=512, prompt_ms=4.0)
    assert max(took[3:]) < 4 + 40, "no part is shorter than 16 inputs"
    assert len(took) < 1600 / 16 + 10


def test_beside_own_steps_the_end_of_a_prompt_takes_no_longer_than_its_start() -> None:
    took = timed_parts(user="ann", prompt_tokens=512, prompt_ms=10.0)
    first = 4 + 512 * 0.05
    assert max(took) < 3 * first, "the second one tells how the cost grows"
    assert max(took[3:]) < 1.5 * first
    assert sum(took[3:-1]) > 0.6 * first * len(took[3:-1]), "and that much it may take"


def test_beside_own_steps_a_slow_models_prompt_has_some_times_what_the_operator_says() -> None:
    took = timed_parts(user="ann", prompt_tokens=512, prompt_ms=4.0)
    assert max(took[3:]) < 4 + 1.3 * 16, "512 inputs take 26 ms without a context"
    assert sum(took[3:-1]) > 0.6 * 16 * len(took[3:-1]), "and that much it may take"


def test_a_users_prompt_does_not_run_whole_between_two_of_his_own_steps() -> None:
    server = timed(prompt_tokens=512, prompt_ms=50.0)
    decoder = Decoder(server)
    for token in range(3):
        decoder.step(token)
        server.step()
    prompt = Prompt(Guest(server, server.launch("ann")), [token % 100 for token in range(1600)])
    server.step()
    assert max(inputs for _, inputs in forwards(server)) <= 512
    server.drain()
    assert prompt.is_right()


def test_prompts_of_one_user_alone_run_whole_where_no_other_can_come() -> None:
    for user, most in ((LOCAL_USER, 2000), ("ann", 500)):
        server = timed(prompt_tokens=512, prompt_ms=5.0)
        prompts = [Prompt(Guest(server, server.launch(user)), [n] * 500) for n in range(4)]
        server.drain()
        assert max(inputs for _, inputs in forwards(server)) <= most
        assert (forwards(server) == [(4, 2000)]) is (user == LOCAL_USER)
        assert all(prompt.is_right() for prompt in prompts)


def test_another_users_prompt_does_not_wait_for_many_of_one_user() -> None:
    """It comes after the part that is sent; then the users take turns."""
    server = timed(prompt_tokens=512, prompt_ms=50.0)
    many = [Prompt(Guest(server, server.launch("mallory")), [n] * 400) for n in range(24)]
    server.send()  # before another user is there
    late = Prompt(Guest(server, server.launch("victim")), [9] * 100)
    assert not late.guest.ready(late.future)
    waited = 0
    while not late.guest.ready(late.future):
        server.step()
        waited += 1
    assert waited <= 3
    assert late.is_right()
    server.drain()
    assert all(prompt.is_right() for prompt in many)


def test_what_comes_after_the_plan_does_not_wait_for_a_batch_of_prompts_alone() -> None:
    """Steps of a program that looks at each token are queued when the next plan has gone."""
    server = timed(prompt_tokens=512, prompt_ms=10.0)
    assert isinstance(server.worker, Timed)
    took = server.worker.took
    mallory = [Guest(server, server.launch("mallory")) for _ in range(4)]
    decoder = Decoder(server, "victim")

    def plans(count: int, steps: int) -> list[float]:
        nonlocal decoder
        before = len(took)
        for plan in range(count):
            for guest in mallory:
                guest.flood(600)
            if plan % 3 == 0 and len(decoder.tokens) == 16:
                server.end(decoder.guest.instance)
                decoder = Decoder(server, "victim")
            if plan % 3 == 0 and plan < steps:
                decoder.step()
            server.step()
        return took[before:]

    busy = plans(30, 30)
    assert max(busy[9:]) < 20, "though two of three batches have nothing of the victim's"
    idle = plans(30, 0)[15:]
    assert 30 < max(idle) < 75, "a victim who rests"
    server.end(decoder.guest.instance)
    assert 30 < max(plans(12, 0)[6:]) < 75, "another one may come"

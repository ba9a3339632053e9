"""What each policy sends, and when."""

from __future__ import annotations

from support.scheduler_fixtures import Guest, Server

from pie_control.scheduler.policy import K_ONLY_PATIENCE


def ask_for_a_token(guest: Guest) -> int:
    embed = guest.embeds(1)
    guest.embed([1], 0, embed)
    guest.forward([], embed, [], embed)
    return guest.dist(embed[0])


def sent(server: Server) -> list[tuple[str, int, int]]:
    sizes = list(server.worker.sizes)
    server.worker.sizes.clear()
    return sizes


def test_adaptive_sends_all_there_is_at_once() -> None:
    server = Server("adaptive")
    for guest in (Guest(server), Guest(server)):
        ask_for_a_token(guest)
    assert server.scheduler.next_deadline() is None
    assert server.send(later=0)
    assert sent(server) == [("embed_text", 1, 2), ("forward", 2, 2), ("next_dist", 2, 2)]
    assert not server.send()


def test_eager_sends_one_command_a_plan_oldest_kind_first() -> None:
    server = Server("eager")
    for guest in (Guest(server), Guest(server)):
        ask_for_a_token(guest)
    for kind in ("embed_text", "forward", "next_dist", "embed_text", "forward", "next_dist"):
        assert server.send(later=0)
        assert sent(server) == [(kind, 1, 1)]
    assert not server.send()


def test_k_only_waits_for_k_commands_of_a_kind() -> None:
    server = Server("k-only", k=3)
    guests = [Guest(server) for _ in range(4)]
    for guest in guests[:2]:
        ask_for_a_token(guest)
    assert not server.send(later=0)
    ask_for_a_token(guests[2])
    for kind in ("embed_text", "forward", "next_dist"):
        assert server.send(later=0)
        assert [(name, rows) for name, _, rows in sent(server)] == [(kind, 3)]
    assert not server.send(later=0)


def test_k_only_does_not_wait_for_ever() -> None:
    server = Server("k-only", k=3)
    ask_for_a_token(Guest(server))
    due = server.scheduler.next_deadline()
    assert due == server.clock() + K_ONLY_PATIENCE
    assert server.scheduler.next_plan(due - 1e-6) is None
    assert server.scheduler.next_plan(due) is not None


def test_t_only_waits_until_the_oldest_is_t_old() -> None:
    server = Server("t-only")
    first, second = Guest(server), Guest(server)
    ask_for_a_token(first)
    due = server.scheduler.next_deadline()
    assert due == server.clock() + 0.01
    server.clock.seconds += 0.005
    ask_for_a_token(second)
    assert due == server.scheduler.next_deadline()
    assert server.scheduler.next_plan(due - 1e-6) is None
    plan = server.scheduler.next_plan(due)
    assert plan is not None
    assert [len(batch.tokens) for batch in plan.batches] == [2]


def test_no_policy_loses_a_command() -> None:
    for policy in ("adaptive", "eager", "k-only", "t-only"):
        server = Server(policy)
        guests = [Guest(server) for _ in range(7)]
        futures = [(guest, ask_for_a_token(guest)) for guest in guests for _ in range(3)]
        server.drain()
        assert all(len(guest.take(future)) == 3 for guest, future in futures)
        assert server.scheduler.next_deadline() is None
        assert server.scheduler.stats()["commands"]["forward"] == 21

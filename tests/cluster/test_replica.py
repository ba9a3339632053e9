"""What a gateway knows of the directory's table: the same, or nothing that it places by."""

from __future__ import annotations

from contextlib import suppress
from random import Random

import hypothesis.strategies as st
from cluster.messages import KEY, join, report
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pie_cluster.directory.directory import Directory, Refusal
from pie_cluster.directory.followers import NEWS_NODES, NEWS_SECONDS, SILENT_SECONDS, Followers
from pie_cluster.directory.names import Life
from pie_cluster.directory.policies import cached
from pie_cluster.directory.replica import TRUST_SECONDS, Replica
from pie_cluster.wire.keys import program_key
from pie_cluster.wire.messages import News, Placed, decode_to_directory, decode_told, encode

GATEWAY = b"gateway"
NAMES = ("n1", "n2", "n3")
PROGRAMS = ("a", "b")
names = st.sampled_from(NAMES)


class Pair:
    """A directory and one follower, with messages as frames between them."""

    def __init__(self) -> None:
        self.now = 0.0
        self.followers = Followers()
        self.directory = Directory(cached, Random(0), 0.0, self.followers.note)
        self.replica = Replica(cached, Random(1))
        self.numbers: dict[str, int] = {}

    def joins(self, name: str, incarnation: int = 1, **more: object) -> None:
        self.directory.join(join(name, incarnation, **more), KEY, self.now)
        self.numbers[name] = 0

    def reports(self, name: str, incarnation: int = 1, **more: object) -> None:
        self.numbers[name] += 1
        message = report(self.numbers[name], name, incarnation, **more)  # type: ignore[arg-type]
        self.directory.report(message, KEY, self.now)

    def follow(self) -> None:
        self.followers.follow(GATEWAY, self.replica.told, self.directory.nodes, self.now)
        self.deliver()

    def deliver(self) -> list[News]:
        """All that the directory has to tell, with the pauses between messages."""
        whole = []
        while (seconds := self.followers.seconds(self.now)) < 1:
            self.now += max(seconds, 1e-6)
            for news in self.told():
                self.replica.take(news, self.now)
                whole.append(news)
                assert not news.left or self.place() is None
        return whole

    def told(self) -> list[News]:
        told = [decode_told(encode(news)) for _, news in self.followers.due(self.now)]
        return [news for news in told if isinstance(news, News)]

    def place(self, program: str = "a") -> str | None:
        """Where the replica sends a launch, of which the directory is told."""
        node = self.replica.place("ann", program, self.now)
        if node is None:
            return None
        placed = decode_to_directory(encode(Placed(*node.life, program_key("ann", program))))
        assert isinstance(placed, Placed)
        life = Life(placed.node, placed.incarnation)
        self.directory.placed(life, placed.key, self.now)
        return str(life)


def following(*nodes: str) -> Pair:
    pair = Pair()
    for node in nodes:
        pair.joins(node)
    pair.follow()
    return pair


def test_nothing_is_placed_before_the_directory_has_told_all() -> None:
    pair = Pair()
    for number in range(2 * NEWS_NODES + 1):
        pair.joins(f"n{number}")
    assert pair.place() is None
    pair.followers.follow(GATEWAY, 0, pair.directory.nodes, pair.now)
    assert [news.left for news in pair.deliver()] == [NEWS_NODES + 1, 1, 0]
    assert pair.place() is not None


def test_what_joins_or_reports_is_known_at_once() -> None:
    pair = following("n1")
    pair.joins("n2")
    pair.reports("n1", instances=10)  # full
    pair.deliver()
    assert {pair.place() for _ in range(5)} == {"n2.1"}


def test_launches_follow_what_nodes_have_cached() -> None:
    pair = following(*(f"n{i}" for i in range(20)))
    pair.reports("n7", cached=[(program_key("ann", "a"), 8000)])
    pair.deliver()
    assert {pair.place() for _ in range(5)} == {"n7.1"}
    again = Pair()  # a gateway that is started later
    again.directory, again.followers, again.now = pair.directory, pair.followers, pair.now
    again.follow()
    assert again.place() == "n7.1"


def test_what_a_replica_has_placed_counts_there_and_in_the_directory() -> None:
    pair = following("n1", "n2")
    lives = [pair.place(f"p{number}") for number in range(20)]
    assert lives.count("n1.1") == lives.count("n2.1") == 10
    assert pair.place() is None
    (first, second) = pair.directory.status(pair.now)
    assert first.instances == second.instances == 10


def test_no_node_is_sent_launches_that_drains_is_silent_or_has_ended() -> None:
    pair = following("n1", "n2", "n3", "n4")
    pair.directory.drain("n1", 60, pair.now)
    pair.directory.begin(Life("n2", 2), "it has ended", pair.now)
    pair.deliver()
    assert {pair.place(f"p{number}") for number in range(8)} == {"n3.1", "n4.1"}
    while pair.now < 3:
        pair.now += 0.5
        pair.reports("n4")
        pair.follow()
    assert {pair.place(f"q{number}") for number in range(8)} == {"n4.1"}
    pair.reports("n3")  # it has been silent, and goes on
    pair.deliver()
    assert pair.place("r") == "n3.1"


def test_a_node_that_was_silent_before_it_was_told_of_is_not_given_more_time() -> None:
    pair = Pair()
    pair.joins("n1")
    pair.now = 2.5
    pair.follow()
    assert pair.place() == "n1.1"
    pair.now = 3.1  # nobody has told yet that it is silent
    assert pair.place() is None


def test_without_a_word_of_the_directory_it_is_asked() -> None:
    pair = following("n1")
    heard = pair.now
    pair.now = heard + TRUST_SECONDS - 0.1
    assert pair.place() == "n1.1"
    pair.now = heard + TRUST_SECONDS + 0.1
    assert pair.place() is None
    pair.follow()
    assert pair.place() == "n1.1"


def test_a_message_that_is_missing_is_noticed() -> None:
    pair = following("n1", "n2")
    pair.directory.drain("n1", 60, pair.now)
    pair.now += NEWS_SECONDS
    assert len(pair.told()) == 1  # and lost
    pair.reports("n2")
    pair.deliver()
    assert pair.place() is None
    pair.follow()
    assert {pair.place(f"p{number}") for number in range(5)} == {"n2.1"}


def test_another_directory_tells_all_anew() -> None:
    pair = following("n1", "n2")
    later = Pair()
    later.now = pair.now
    later.joins("n2")
    later.replica = pair.replica  # which says what it has heard of the one before
    later.follow()
    assert {later.place(f"p{number}") for number in range(5)} == {"n2.1"}


def test_a_follower_that_is_gone_is_told_no_more() -> None:
    pair = following("n1")
    pair.now += SILENT_SECONDS
    pair.reports("n1")
    assert pair.told() == []
    pair.reports("n1")
    assert pair.followers.seconds(pair.now) == float("inf")


class ReplicaMachine(RuleBasedStateMachine):
    """After each step that is told, both know the same of the nodes that take launches."""

    def __init__(self) -> None:
        super().__init__()
        self.pair = Pair()
        self.lives = dict.fromkeys(NAMES, 0)
        self.pair.follow()

    @rule(seconds=st.sampled_from([0.1, 0.5, 1.0]))
    def time_passes(self, seconds: float) -> None:
        self.pair.now += seconds
        self.pair.directory.due(self.pair.now)

    @rule(name=names, instances=st.integers(0, 10))
    def begins(self, name: str, instances: int) -> None:
        self.lives[name] += 1
        self.pair.directory.begin(Life(name, self.lives[name]), "", self.pair.now)
        self.pair.joins(name, self.lives[name])

    @rule(name=names, instances=st.integers(0, 10), program=st.sampled_from(PROGRAMS))
    def reports(self, name: str, instances: int, program: str) -> None:
        if self.lives[name]:
            hint = (program_key("ann", program), 100 * instances)
            self.pair.reports(name, self.lives[name], instances=instances, cached=[hint])

    @rule(name=names)
    def drains(self, name: str) -> None:
        with suppress(Refusal):  # it is not there, or the last one
            self.pair.directory.drain(name, 1, self.pair.now)

    @rule(program=st.sampled_from(PROGRAMS))
    def places(self, program: str) -> None:
        self.pair.place(program)

    @rule()
    def starts_again(self) -> None:
        self.pair.replica = Replica(cached, Random(2))

    @invariant()
    def both_know_the_same(self) -> None:
        pair = self.pair
        pair.directory.due(pair.now)
        pair.follow()
        ours = {
            str(node.life): (node.instances, node.used_tokens, node.cached)
            for node in pair.directory.nodes
            if node.bucket is not None
        }
        theirs = {
            str(node.life): (node.instances, node.used_tokens, node.cached)
            for node in pair.replica.nodes
        }
        assert ours == theirs


TestReplica = ReplicaMachine.TestCase
TestReplica.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)

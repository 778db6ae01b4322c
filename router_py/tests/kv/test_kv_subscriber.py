"""The subscriber on real ZMQ sockets. The publisher is a fake that speaks as SGLang 0.5.22 does (tests/e2e/test_28_kv.py has the real one)."""

from __future__ import annotations

import json
import time

import pytest
from infera_router.fleet.pool import Snapshot
from infera_router.fleet.record import parse
from infera_router.kv.subscriber import Subscriber, endpoint_of
from infera_router.kv.view import View

from .publisher import CLEARED, FakePublisher, removed, stored

GPU, CPU = 1, 2


def record(port: int, replay: int | None, ranks: int = 1, **more):
    value = {
        "worker_id": "w:1", "url": "http://127.0.0.1:1", "model_name": "m", "engine": "sglang", "disagg_mode": "prefill", "page_size": 2,
        "disagg_meta": {"protocol": "sglang-bootstrap", "params": {"bootstrap_addr": "127.0.0.1:2"}}, "kv_topic": "kv-events",
        "kv_events_endpoint": f"tcp://127.0.0.1:{port}", "kv_replay_endpoint": f"tcp://127.0.0.1:{replay}" if replay else None,
        "dp_size": ranks if ranks > 1 else None, "generation": "g1", **more}
    return parse("/infera/workers/w:1", json.dumps(value).encode())


class Follower:
    """A subscriber and its view; `fleet(record)` is what etcd would tell."""

    def __init__(self):
        self.view = View()
        self.subscriber = Subscriber(self.view)
        self.snapshot = Snapshot()

    def fleet(self, *records) -> None:
        new = Snapshot(self.snapshot.version + 1, {r.worker_id: r for r in records})
        self.subscriber.update(self.snapshot, new)
        self.snapshot = new

    def until(self, want: dict, key: str = "w:1", seconds: float = 15.0) -> float:
        """Wait until the view of a target is `want` and shown; the seconds it took."""
        started = time.monotonic()
        while True:
            rank = self.view.ranks.get(key)
            if rank is not None and rank.shown and self.view.holds(key) == want:
                return time.monotonic() - started
            assert time.monotonic() - started < seconds, (key, rank and rank.shown, self.view.holds(key), dict(self.subscriber.counts))
            time.sleep(0.01)


@pytest.fixture
def follower():
    made = Follower()
    yield made
    made.subscriber.close()


@pytest.fixture
def publishers():
    made: list[FakePublisher] = []

    def make(**options) -> FakePublisher:
        made.append(FakePublisher(**options))
        return made[-1]

    yield make
    for publisher in made:
        publisher.close()


def test_what_was_published_before_and_what_comes_later(follower, publishers):
    publisher = publishers()
    publisher.publish(stored(1, 2))
    publisher.publish(removed(2))
    follower.fleet(record(publisher.port, publisher.replay_port))
    follower.until({1: GPU})
    publisher.publish(stored(3, parent=1), stored(1, medium="CPU_PINNED"))
    follower.until({1: GPU | CPU, 3: GPU})
    publisher.publish(CLEARED)
    assert follower.until({}) < 2.0
    follower.fleet()
    assert "w:1" not in follower.view.ranks


def test_a_lost_batch_is_replayed_before_what_followed_it(follower, publishers):
    publisher = publishers()
    publisher.publish(stored(1))
    follower.fleet(record(publisher.port, publisher.replay_port))
    follower.until({1: GPU})
    publisher.publish(removed(1), stored(2), lost=True)
    publisher.publish(stored(1))
    follower.until({1: GPU, 2: GPU})
    assert follower.subscriber.counts["gaps"] == 1


def test_a_restarted_publisher_empties_the_view_within_two_seconds(follower, publishers):
    publisher = publishers()
    for page in range(5):
        publisher.publish(stored(page))
    follower.fleet(record(publisher.port, publisher.replay_port))
    follower.until(dict.fromkeys(range(5), GPU))
    publisher.close()
    started = time.monotonic()
    while follower.view.sizes()["w:1"]:
        assert time.monotonic() - started < 2.0
        time.sleep(0.01)
    again = publishers(port=publisher.port, replay_port=publisher.replay_port)
    again.publish(stored(7))
    follower.until({7: GPU})


def test_a_new_generation_of_the_worker_starts_a_new_view(follower, publishers):
    first, second = publishers(), publishers()
    first.publish(stored(1))
    second.publish(stored(2))
    follower.fleet(record(first.port, first.replay_port))
    follower.until({1: GPU})
    follower.fleet(record(second.port, second.replay_port, generation="g2"))
    assert follower.view.holds("w:1") == {}
    follower.until({2: GPU})


def test_every_rank_has_its_port_and_its_view(follower, publishers):
    first = second = None
    for base in range(41310, 41900, 20):
        try:
            first = publishers(port=base, replay_port=base + 10)
            second = publishers(port=base + 1, replay_port=base + 11)
            break
        except Exception:  # in use
            continue
    first.publish(stored(1))
    second.publish(stored(2))
    follower.fleet(record(first.port, first.replay_port, ranks=2))
    follower.until({1: GPU}, "w:1#dp0")
    follower.until({2: GPU}, "w:1#dp1")
    assert follower.view.sizes() == {"w:1#dp0": 1, "w:1#dp1": 1}


def test_without_a_replay_endpoint_the_view_begins_with_what_comes(follower, publishers):
    publisher = publishers()
    publisher.publish(stored(1))
    follower.fleet(record(publisher.port, None))
    started = time.monotonic()
    while not follower.view.holds("w:1"):
        publisher.publish(stored(2))
        assert time.monotonic() - started < 10
        time.sleep(0.02)
    follower.until({2: GPU})


def test_a_batch_that_is_no_batch_is_counted_and_left_out(follower, publishers):
    publisher = publishers()
    publisher.publish(stored(1))
    follower.fleet(record(publisher.port, publisher.replay_port))
    follower.until({1: GPU})
    publisher.pub.send_multipart([publisher.topic, (1).to_bytes(8, "big"), b"\xc1"])
    publisher.sequence = 2
    publisher.publish(stored(2))
    follower.until({1: GPU, 2: GPU})
    assert follower.subscriber.counts["undecodable"] == 1


def test_a_worker_that_is_not_there_yet_is_followed_when_it_comes(follower, publishers):
    probe = publishers()
    port, replay = probe.port, probe.replay_port
    probe.close()
    follower.fleet(record(port, replay))
    time.sleep(0.3)
    publisher = publishers(port=port, replay_port=replay)
    publisher.publish(stored(5))
    follower.until({5: GPU})


def test_ports_of_ranks():
    assert endpoint_of("tcp://10.0.0.1:31310", 3) == "tcp://10.0.0.1:31313"
    assert endpoint_of("tcp://[fd00::1]:31310", 1) == "tcp://[fd00::1]:31311"

"""The order of one publisher's batches under loss, restart and broken replays: what is shown is always one publisher's contiguous history."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from infera_router.kv import stream as stream_module
from infera_router.kv.stream import COOLDOWN_S, PROBE_AFTER_S, REPLAY_TIMEOUT_S, Mode, Stream


class Bench:
    """A stream over a list of payloads as its view, and a publisher that the test drives by hand."""

    def __init__(self, replay: bool = True):
        self.now = 100.0
        self.view: list[bytes] = []
        self.shown = False
        self.requests: list[int] = []
        self.counts: Counter = Counter()
        self.stream = Stream(self.view.append, self.view.clear, self._show, self.requests.append if replay else None, self.counts)
        self.stream.start(self.now)

    def _show(self, shown: bool) -> None:
        self.shown = shown

    def live(self, sequence: int, payload: bytes | None = None) -> None:
        self.stream.live(sequence, b"p%d" % sequence if payload is None else payload, self.now)

    def answer(self, *sequences: int, end: bool = True) -> None:
        """Answer the replay request that is outstanding."""
        for sequence in sequences:
            self.stream.replayed(sequence, b"p%d" % sequence, self.now)
        if end:
            self.stream.replay_ended(self.now)

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.stream.tick(self.now)

    def ready(self, count: int) -> Bench:
        """In step with a publisher that has sent `count` batches."""
        self.answer(*range(count))
        assert self.shown and self.view == [b"p%d" % n for n in range(count)]
        self.requests.clear()
        return self


def test_history_from_before_the_start_is_replayed_first():
    made = Bench()
    assert made.requests == [0] and not made.shown
    made.live(3)
    made.answer(0, 1, 2, 3)
    assert made.view == [b"p0", b"p1", b"p2", b"p3"] and made.shown
    made.live(4)
    assert made.view[-1] == b"p4"


def test_a_gap_is_filled_before_the_batch_that_showed_it():
    made = Bench().ready(3)
    made.live(5)
    assert not made.shown and made.requests == [2] and made.view == [b"p0", b"p1", b"p2"]
    made.answer(2, 3, 4, 5)
    assert made.shown and made.view == [b"p%d" % n for n in range(6)] and made.counts["gaps"] == 1


def test_the_same_batch_twice_changes_nothing():
    made = Bench().ready(3)
    made.live(2)
    assert made.shown and len(made.view) == 3 and not made.requests


@pytest.mark.parametrize("sequence", [0, 1, 2])
def test_a_sequence_that_went_back_is_another_publisher(sequence):
    made = Bench().ready(3)
    made.live(sequence, b"new")
    assert not made.shown and made.view == [] and made.requests == [0] and made.counts["publisher_restarts"] == 1


def test_a_restart_that_overtook_us_is_found_by_the_last_batch():
    made = Bench().ready(2)
    made.live(7, b"n7")
    made.stream.replayed(1, b"n1", made.now)
    assert made.view == [] and made.requests == [1, 0] and made.counts["continuity_lost"] == 1
    for sequence in range(8):
        made.stream.replayed(sequence, b"n%d" % sequence, made.now)
    made.stream.replay_ended(made.now)
    assert made.shown and made.view == [b"n%d" % n for n in range(8)]


def test_a_replay_with_holes_goes_on_from_the_first():
    made = Bench()
    made.answer(0, 1, 4, 5)
    assert not made.shown and made.requests == [0, 2] and made.view == [b"p0", b"p1"]
    made.answer(2, 3, 4, 5)
    assert made.shown and made.view == [b"p%d" % n for n in range(6)]


def test_a_silent_replay_gives_up_follows_live_and_tries_again():
    made = Bench()
    made.live(4)
    made.wait(REPLAY_TIMEOUT_S + 0.1)
    assert made.shown and made.view == [b"p4"] and made.counts["replay_failures"] == 1
    made.live(5)
    assert made.view == [b"p4", b"p5"]
    made.wait(COOLDOWN_S + 0.1)
    assert not made.shown and made.requests == [0, 0]
    made.answer(0, 1, 2, 3, 4, 5)
    assert made.shown and len(made.view) == 6


def test_a_gap_without_an_answer_empties_the_view():
    made = Bench().ready(3)
    made.live(5)
    made.wait(REPLAY_TIMEOUT_S + 0.1)
    assert made.view == [b"p5"] and made.shown


def test_a_gap_during_the_pause_after_a_failed_replay_empties_the_view():
    made = Bench()
    made.wait(REPLAY_TIMEOUT_S + 0.1)
    made.live(3)
    made.live(5)
    assert made.view == [b"p5"] and made.shown


def test_without_a_replay_endpoint_a_view_begins_with_what_comes():
    made = Bench(replay=False)
    made.live(8)
    made.live(9)
    assert made.view == [b"p8", b"p9"] and made.shown
    made.live(12)
    assert made.view == [b"p12"] and made.counts["gaps"] == 1
    made.stream.disconnected(made.now)
    assert made.view == [] and not made.shown
    made.stream.connected(made.now)
    made.live(0)
    assert made.view == [b"p0"] and made.shown


def test_silence_is_probed_while_the_view_stays_in_use():
    made = Bench().ready(3)
    made.wait(PROBE_AFTER_S + 0.1)
    assert made.requests == [2] and made.shown and made.stream.mode is Mode.PROBE
    made.answer(2, 3)
    assert made.view[-1] == b"p3" and made.shown, "a lost last batch came with the probe"


def test_a_broken_connection_hides_the_view_until_the_publisher_proves_to_be_the_same():
    made = Bench().ready(3)
    made.stream.disconnected(made.now)
    assert not made.shown and made.requests == [2]
    made.wait(REPLAY_TIMEOUT_S + 0.1)
    assert made.view == []
    made.stream.connected(made.now)
    assert made.requests[-1] == 0
    made.answer(0, 1, 2, 3)
    assert made.shown and len(made.view) == 4


def test_batches_between_an_empty_history_and_the_subscription_are_asked_for():
    made = Bench()
    made.live(1)
    made.answer()
    assert not made.shown and made.requests == [0, 0]
    made.answer(0, 1)
    assert made.shown and made.view == [b"p0", b"p1"]


def test_a_publisher_that_keeps_no_history_is_believed_at_the_second_time():
    made = Bench()
    made.live(7)
    made.answer()
    made.answer()
    assert made.shown and made.view == [b"p7"] and made.requests == [0, 0]


def test_the_doubt_about_one_publisher_is_not_spent_on_the_next():
    made = Bench()
    made.live(1)
    made.answer()
    made.answer(0, 1)
    made.stream.disconnected(made.now)
    made.stream.connected(made.now)
    made.answer()
    made.live(1)
    made.answer()
    assert not made.shown and made.requests == [0, 0, 1, 0, 0]
    made.answer(0, 1)
    assert made.shown and made.view == [b"p0", b"p1"]


@pytest.mark.parametrize("end", ["disconnect", "no answer"])
def test_a_doubt_ends_with_the_replay_that_it_asked_for(end):
    made = Bench()
    made.live(1)
    made.answer()
    if end == "disconnect":
        made.stream.disconnected(made.now)
        made.stream.connected(made.now)
    else:
        made.wait(REPLAY_TIMEOUT_S + 0.1)
        made.view.clear()
        made.wait(COOLDOWN_S + 0.1)
    asked = len(made.requests)
    made.live(1)
    made.answer()
    assert not made.shown and made.requests[asked:] == [0]


def test_buffered_batches_are_bounded(monkeypatch):
    monkeypatch.setattr(stream_module, "BUFFER_BYTES", 100)
    made = Bench()
    for sequence in range(5, 50):
        made.live(sequence, b"x" * 30)
    assert made.stream._buffered <= 100 and made.counts["buffer_overflows"] > 0


class World:
    """A publisher with a bounded history behind a lossy network, and time; everything that can go wrong does."""

    def __init__(self, seed: int, history: int):
        self.rng = random.Random(seed)
        self.history = history
        self.incarnation = 0
        self.sent: list[bytes] = []
        self.live: list[tuple[int, bytes]] = []
        self.answers: list[tuple] = []
        self.faulty = True
        self.now = 0.0
        self.view: list[bytes] = []
        self.shown = False
        self.stream = Stream(self.view.append, self.view.clear, self._show, self._request, Counter())
        self.stream.start(self.now)

    def _show(self, shown: bool) -> None:
        self.shown = shown

    def _request(self, sequence: int) -> None:
        self.answers = []
        if self.faulty and self.rng.random() < 0.2:
            return
        first = max(sequence, len(self.sent) - self.history)
        for at in range(first, len(self.sent)):
            # A ROUTER socket drops what a full pipe does not take: never the first answer on a new connection.
            if at == first or not (self.faulty and self.rng.random() < 0.1):
                self.answers.append((at, self.sent[at]))
        if not (self.faulty and self.rng.random() < 0.1):
            self.answers.append((-1, b""))

    def publish(self) -> None:
        payload = b"%d:%d" % (self.incarnation, len(self.sent))
        if not (self.faulty and self.rng.random() < 0.15):
            self.live.append((len(self.sent), payload))
        self.sent.append(payload)

    def restart(self) -> None:
        """Another process on the same ports. A part of what was under way still arrives, then the connection breaks."""
        for sequence, payload in self.live[:self.rng.randrange(len(self.live) + 1)]:
            self.stream.live(sequence, payload, self.now)
            self.check()
        self.incarnation += 1
        self.sent, self.live, self.answers = [], [], []
        self.stream.disconnected(self.now)
        if self.rng.random() < 0.5:
            self.now += self.rng.choice((0.1, 3.0, 9.0))
            self.stream.tick(self.now)
        self.stream.connected(self.now)

    def step(self) -> None:
        chance = self.rng.random()
        if chance < 0.35:
            self.publish()
        elif chance < 0.6 and self.live:
            self.stream.live(*self.live.pop(0), self.now)
        elif chance < 0.9 and self.answers:
            sequence, payload = self.answers.pop(0)
            if sequence < 0:
                self.stream.replay_ended(self.now)
            else:
                self.stream.replayed(sequence, payload, self.now)
        elif chance < 0.92 and self.faulty:
            self.restart()
        else:
            self.now += self.rng.choice((0.05, 0.05, 0.5, 2.5, 6.0))
            self.stream.tick(self.now)
        self.check()

    def check(self) -> None:
        """What is shown is a run without holes of one publisher's batches."""
        if self.shown and self.view:
            incarnation, first = map(int, self.view[0].split(b":"))
            assert self.view == [b"%d:%d" % (incarnation, first + n) for n in range(len(self.view))]

    def settle(self) -> None:
        """The network is whole again: everything is delivered, and time passes."""
        self.faulty = False
        for last in range(400, -1, -1):
            while self.live:
                self.stream.live(*self.live.pop(0), self.now)
                self.check()
            while self.answers:
                sequence, payload = self.answers.pop(0)
                if sequence < 0:
                    self.stream.replay_ended(self.now)
                else:
                    self.stream.replayed(sequence, payload, self.now)
                self.check()
            if last:
                self.now += 0.5
                self.stream.tick(self.now)


@settings(max_examples=120, deadline=None)
@given(seed=st.integers(0, 2**32), history=st.sampled_from([3, 10, 10_000]), steps=st.integers(0, 250))
@example(seed=115829294, history=3, steps=248)
def test_whatever_is_lost_the_view_heals(seed, history, steps):
    """At the end the view is the newest publisher's whole history, or its end where the history was cut; never another's."""
    world = World(seed, history)
    for _ in range(steps):
        world.step()
    world.settle()
    assert world.shown
    if world.sent:
        assert world.view and world.view[-1] == world.sent[-1] and world.view == world.sent[-len(world.view):]
        if history >= len(world.sent):
            assert world.view == world.sent
    else:
        assert world.view == []

"""When a round's requests to engines are written, and that no connection's fault touches another's. The transports are stand-ins that note writes."""

import asyncio

import pytest
from infera_router.http.outbox import AT_ONCE, TOGETHER, Outbox


class Transport:
    def __init__(self, log, name, broken=False):
        self.log, self.name, self.broken = log, name, broken
        self.closing = self.aborted = False

    def is_closing(self):
        return self.closing

    def write(self, data):
        if self.broken:
            raise RuntimeError("broken")
        self.log.append((self.name, bytes(data)))

    def writelines(self, parts):
        self.write(b"".join(parts))

    def abort(self):
        self.closing = self.aborted = True


@pytest.fixture
def loop():
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def rounds(loop, *calls):
    """Each call in a round of the loop of its own."""

    async def run():
        for call in calls:
            call()
            for _ in range(3):
                await asyncio.sleep(0)

    loop.run_until_complete(run())


def test_a_lone_pair_goes_out_at_once_and_the_rest_of_a_round_together_at_its_end(loop):
    log, seen = [], []
    outbox = Outbox(loop)

    def pair():
        for name in "pd":
            outbox.send(Transport(log, name), [b"x"])
        seen.append(len(log))

    def many():
        for name in "abcde":
            outbox.send(Transport(log, name), [b"1", b"2"])
        seen.append(len(log))

    rounds(loop, pair, pair, many, many, pair, pair)
    # a round after a large one waits as a whole: the next ones are likely large as well
    assert seen == [2, 4, 6, 9, 14, 18]
    assert [name for name, _ in log] == list("pdpdabcdeabcdepdpd")
    assert log[4] == ("a", b"12")
    assert AT_ONCE == 2


def test_a_long_round_does_not_keep_what_waits(loop):
    log = []
    outbox = Outbox(loop)

    def long():
        for number in range(AT_ONCE + TOGETHER):
            assert len(log) == min(number, AT_ONCE)
            outbox.send(Transport(log, number), [b"x"])
        assert [name for name, _ in log] == list(range(AT_ONCE + TOGETHER))

    rounds(loop, long)


def test_a_transport_that_closed_gets_nothing_and_a_broken_one_costs_only_itself(loop, caplog):
    log = []
    outbox = Outbox(loop)
    made = [Transport(log, number, broken=number == 3) for number in range(6)]

    def send():
        for transport in made:
            outbox.send(transport, [b"x"])
        made[4].closing = True

    rounds(loop, send)
    assert [name for name, _ in log] == [0, 1, 2, 5]
    assert [t.aborted for t in made] == [False, False, False, True, False, False]
    assert "a request could not be written" in caplog.text

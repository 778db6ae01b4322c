"""The ledger beside the engines' own loads."""
import asyncio
import json
import types

import pytest
from infera_emulator.balance.web import serve
from infera_router.fleet.pool import Snapshot
from infera_router.fleet.record import WorkerRecord
from infera_router.pd.audit import BadLoads, LedgerAudit, counts
from infera_router.policy.api import PolicySettings, RequestFacts
from infera_router.policy.engine import Policy


def loads(*rows):
    return json.dumps({"loads": [{"dp_rank": rank, "num_running_reqs": running, "num_waiting_reqs": waiting} for rank, running, waiting in rows]}).encode()


def test_running_and_waiting_requests_count():
    assert counts(loads((1, 2, 3), (0, 0, 1)), 2) == {0: 1, 1: 5}


@pytest.mark.parametrize("body", [
    b"no json", b"[]", b"{}", b'{"loads": 5}', b'{"loads": [{}]}', loads((0, -1, 0)), loads((0, 1, -1)), loads((0, 1.0, 0)), loads((0, True, 0)),
    loads((0, "1", 0)), loads((0, 1, 0)), loads((0, 1, 0), (2, 1, 0)), loads((0, 1, 0), (1, 0, 0), (2, 0, 0))])
def test_counts_that_cannot_be_right_are_refused(body):
    with pytest.raises(BadLoads):
        counts(body, 2)


class Rig:
    """A decode with two ranks that says what the test wants, a policy, and the audit between them."""

    def __init__(self, port):
        self.says = loads((0, 0, 0), (1, 0, 0))
        self.status = 200
        self.during = lambda: None
        workers = [WorkerRecord("p:1", "http://p:1", "m", disagg_mode="prefill", bootstrap_host="p", bootstrap_port=2, generation="g"),
                   WorkerRecord(f"127.0.0.1:{port}", f"http://127.0.0.1:{port}", "m", disagg_mode="decode", dp_size=2, generation="g")]
        self.snapshot = Snapshot(1, {w.worker_id: w for w in workers})
        self.policy = Policy(PolicySettings(decode_input_demand="on"))
        self.policy.update(self.snapshot)
        self.audit = LedgerAudit(types.SimpleNamespace(policy=self.policy, fleet=self), 1.0)
        self.keys = [f"127.0.0.1:{port}#dp{rank}" for rank in (0, 1)]

    def answer(self, exchange):
        self.during()
        exchange.reply(self.says, self.status)

    def pick(self):
        return self.policy.pick(RequestFacts("m", 10), now=0.0)


def run(scenario):
    async def body():
        holder = []
        server, port = await serve(lambda exchange: holder[0].answer(exchange), "127.0.0.1", 0)
        holder.append(Rig(port))
        try:
            await scenario(holder[0])
        finally:
            server.close()

    asyncio.run(body())


def test_a_lease_that_nobody_releases_shows_and_one_that_is_released_does_not():
    async def scenario(rig):
        held = [rig.pick() for _ in range(2)]
        rig.says = loads((0, 1, 0), (1, 0, 1))
        await rig.audit.look()
        assert rig.audit.difference == dict.fromkeys(rig.keys, 0) and rig.audit.engine == dict.fromkeys(rig.keys, 1)
        rig.says = loads((0, 0, 0), (1, 0, 1))      # the first one has ended on the engine
        for _ in range(3):
            await rig.audit.look()
        assert rig.audit.difference == {rig.keys[0]: 1, rig.keys[1]: 0}
        held[0].lease.release()
        await rig.audit.look()
        assert rig.audit.difference == dict.fromkeys(rig.keys, 0)

    run(scenario)


def test_requests_of_another_router_show_as_more_on_the_engine():
    async def scenario(rig):
        rig.says = loads((0, 4, 3), (1, 0, 0))
        for _ in range(3):
            await rig.audit.look()
        assert rig.audit.difference == {rig.keys[0]: -7, rig.keys[1]: 0}

    run(scenario)


def test_what_comes_and_goes_between_two_looks_is_no_difference():
    async def scenario(rig):
        held = [rig.pick()]
        await rig.audit.look()                      # not there yet
        assert rig.audit.difference[rig.keys[0]] == 1
        rig.says = loads((0, 1, 0), (1, 0, 0))
        await rig.audit.look()
        assert rig.audit.difference[rig.keys[0]] == 0
        rig.says, rig.during = loads((0, 0, 0), (1, 0, 0)), lambda: held.pop().lease.release() if held else None
        await rig.audit.look()                      # ends while the question is under way
        await rig.audit.look()
        assert rig.audit.difference == dict.fromkeys(rig.keys, 0)

    run(scenario)


def test_an_engine_that_does_not_answer_or_answers_nonsense_is_counted_and_changes_nothing():
    async def scenario(rig):
        rig.says = loads((0, 2, 0), (1, 0, 0))
        await rig.audit.look()
        rig.says = loads((0, -1, 0), (1, 0, 0))
        await rig.audit.look()
        rig.status = 500
        await rig.audit.look()
        assert rig.audit.outcomes == {"ok": 1, "unanswered": 0, "unusable": 2} and rig.audit.engine[rig.keys[0]] == 2
        rig.snapshot = Snapshot(2, {"127.0.0.1:1": WorkerRecord("127.0.0.1:1", "http://127.0.0.1:1", "m", disagg_mode="decode")})
        await rig.audit.look()
        assert rig.audit.outcomes["unanswered"] == 1 and rig.audit.engine == rig.audit.difference == {}

    run(scenario)

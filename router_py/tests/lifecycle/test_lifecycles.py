"""Ten thousand random life cycles leave nothing behind: no lease, no gauge below zero, no socket, no task."""

import asyncio
import gc
import logging
import os
import random
from collections import Counter
from dataclasses import replace

import pytest
from rig import DEMAND, Rig, run
from schedules import life

TOTAL = int(os.environ.get("INFERA_LIFECYCLES", "10000"))
ROUNDS = 10


async def one_round(seed: int, count: int, **settings) -> Counter:
    rng = random.Random(seed)
    seen: Counter = Counter()
    policy = replace(DEMAND, breaker_failure_threshold=5, breaker_cooldown_s=0.02)
    settings = {"request_max_retries": rng.choice((0, 1, 3)), "drain_timeout": 0.05, "prefill_drain_timeout": 0.1,
                "prefill_abort": rng.choice(("auto", "always", "never")), **settings}
    before = asyncio.all_tasks()
    rig = Rig(2, 2, rng.choice((0, 1)), prefill_ranks=2, decode_ranks=2, policy=policy, settings=settings,
              engine={"idle_close": rng.choice((None, 0.01, 0))})
    await rig.__aenter__()
    for engine in rig.all():
        engine.keep_seen = 0
    core = rig.app.core
    left = [count]

    async def client() -> None:
        while left[0] > 0:
            left[0] -= 1
            await life(rng, rig.port, seen)

    async def fleet() -> None:
        """Workers leave, and come back as new starts of their engines."""
        start = 0
        while left[0] > 0:
            await asyncio.sleep(rng.random() * 0.02)
            start += 1
            rig.register(without=rng.choice(rig.all()), generation=f"start-{start // 3}")

    async def watcher() -> None:
        while left[0] > 0:
            held = core.policy.demand()
            assert all(h.requests >= 0 and h.tokens >= 0 and h.unknown >= 0 for h in held), held
            assert all(value >= 0 for value in core.inflight.values()), core.inflight
            booked = sum(1 for ex in core.live if ex.pick is not None and ex.pick.decode is not None)
            assert sum(h.requests for h in held) == booked
            assert core.policy.open_leases == sum(ex.pick is not None for ex in core.live)
            await asyncio.sleep(0.001)

    await asyncio.gather(watcher(), fleet(), *(client() for _ in range(48)))
    rig.register()
    # the router goes while requests run
    tail = [asyncio.ensure_future(life(rng, rig.port, seen)) for _ in range(40)]
    await asyncio.sleep(0.01)
    await rig.app.drain()
    await asyncio.gather(*tail)
    await rig.settle(3)
    assert core.policy.ledger.faults == 0 and core.policy.lost == 0 and core.policy.failed_releases == 0
    assert all(value == 0 for value in core.inflight.values())
    assert all(value >= 0 for table in core.store.numbers.values() for value in table.values())
    ended = sum(core.store.table("infera_requests_total").values())
    assert ended > 0
    await rig.__aexit__()
    assert not rig.app.connections and not rig.app._busy
    assert not any(engine.connections for engine in rig.all()), "sockets left"
    await asyncio.sleep(0.01)
    left_tasks = {t for t in asyncio.all_tasks() - before if not t.done() and t is not asyncio.current_task()}
    assert not left_tasks, left_tasks
    return seen


@pytest.mark.slow
def test_ten_thousand_life_cycles_leave_nothing_behind(capsys):
    seed = int(os.environ.get("INFERA_SEED", "0")) or random.SystemRandom().getrandbits(32)
    with capsys.disabled():
        print(f"\nlife cycles: {TOTAL}, INFERA_SEED={seed}")
    logging.disable(logging.CRITICAL)
    total: Counter = Counter()
    try:
        for number in range(ROUNDS):
            total += run(one_round(seed + number, TOTAL // ROUNDS))
    finally:
        logging.disable(logging.NOTSET)
    gc.collect()
    # every kind of schedule took part, and some requests went through
    assert total["200"] > TOTAL // 50 and all(total[how] > TOTAL // 200 for how in ("read", "never_read", "mid_stream", "half_request", "reset"))


def test_a_few_hundred_life_cycles():
    logging.disable(logging.CRITICAL)
    try:
        run(one_round(7, 400))
    finally:
        logging.disable(logging.NOTSET)

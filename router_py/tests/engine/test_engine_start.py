"""A supervisor with a fake child and the real etcd: what `make check` looks at; test_engine_life.py has the rest."""

import os
import signal

from engine.engine_rig import DECODE, PREFILL, alive
from fleet.etcd_server import run


def test_starting_then_active_with_what_the_server_says(engine):
    async def main():
        one = engine(*PREFILL, "--served-model-name", "fake", ready=False)
        await one.status("starting")
        early = await one.record()
        assert early["disagg_mode"] == "prefill" and early["kv_events_endpoint"] is None
        one.say(ready=True)
        await one.status("active")
        record = await one.record()
        assert record["generation"] == early["generation"] and record["started_at"] == early["started_at"]
        assert {name: record[name] for name in ("dp_size", "page_size", "kv_block_size", "tp_size", "kv_topic", "kv_events_endpoint",
                                                "kv_replay_endpoint", "model_name", "schema", "url", "disagg_meta")} == {
            "dp_size": 2, "page_size": 64, "kv_block_size": 64, "tp_size": 2, "kv_topic": "kv-events", "model_name": "fake", "schema": 1,
            "kv_events_endpoint": f"tcp://127.0.0.1:{one.port + 310}", "kv_replay_endpoint": f"tcp://127.0.0.1:{one.port + 340}",
            "url": f"http://127.0.0.1:{one.port}",
            "disagg_meta": {"protocol": "sglang-bootstrap", "params": {"bootstrap_addr": "127.0.0.1:8111"}}}
        assert "--enable-metrics" in one.log

    run(main())


def test_the_child_dies(engine):
    async def main():
        one = engine(*DECODE, orphan=True)
        await one.status("active")
        child, helper = one.pids
        os.kill(child, signal.SIGKILL)
        assert await one.status(None, timeout=2) < 2
        assert await one.ended() == 128 + 9
        assert not alive(helper), "what the child left in its group is ended too"

    run(main())

"""What is counted is what happened; several processes add up; names are the same everywhere."""

import asyncio
import json
import pathlib
import re
import shutil
import subprocess

import pytest
from fleet.etcd_server import eventually, free_ports
from infera_router.observe.metrics import FAMILIES, HISTOGRAM, Store, keep_counters, merge
from rig import Rig, run

ROOT = pathlib.Path(__file__).resolve().parents[3]
MONITORING = ROOT / "monitoring"


async def page(rig):
    answer = await rig.ask(None, "/metrics", "GET")
    assert answer.status == 200 and answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    text = answer.body.decode()
    return text, {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line and not line.startswith("#")}


def test_every_request_is_counted_once_and_to_its_end():
    async def body():
        async with Rig(2, 2, settings={"request_max_retries": 1}, engine={"step": 0.02}) as rig:
            stream = await rig.client()
            stream.send(body=rig.chat(True, max_tokens=20))
            await stream.head()
            _, seen = await page(rig)
            assert seen['infera_request_inflight{router="pd"}'] == 1
            assert 'infera_request_duration_seconds_count{outcome="ok",router="pd"}' not in seen, "a stream is measured to its end"
            assert sum(v for k, v in seen.items() if k.startswith("infera_router_decode_demand_requests")) == 1
            await stream.reader.readuntil(b"[DONE]")
            stream.close()
            for _ in range(3):
                await rig.ask(rig.chat())
            failing = rig.engines["decode"][0]
            from infera_emulator.faults import Fault

            shots = [Fault.parse("status:500")]
            failing.script = lambda path, request: shots.pop() if shots else None
            for _ in range(2):
                assert (await rig.ask(rig.chat())).status == 200
            gone = await rig.client()
            gone.send(body=rig.chat(fault={"decode": "hang"}))
            while not rig.app.core.live:
                await asyncio.sleep(0.01)
            gone.close()
            assert (await rig.ask(b"no json")).status == 400
            await rig.settle()
            text, seen = await page(rig)
            assert seen['infera_requests_total{outcome="ok",router="pd"}'] == 6
            assert seen['infera_requests_total{outcome="cancelled",router="pd"}'] == 1
            assert seen['infera_requests_total{outcome="client_error",router="none"}'] == 1
            assert seen['infera_request_duration_seconds_count{outcome="ok",router="pd"}'] == 6
            assert seen['infera_request_duration_seconds_sum{outcome="ok",router="pd"}'] > 0.3
            assert seen['infera_time_to_first_token_seconds_count{router="pd"}'] == 1
            assert seen['infera_time_to_first_token_seconds_sum{router="pd"}'] < 0.3
            assert seen['infera_inter_token_latency_seconds_count{router="pd"}'] >= 15
            assert sum(v for k, v in seen.items() if k.startswith("infera_request_retries_total{")) == 1
            assert seen['infera_request_cancellations_total{stage="waiting"}'] == 1
            assert seen[f'infera_leg_failures_total{{leg="decode",reason="500",worker_id="{failing.worker_id}"}}'] == 1
            assert seen['infera_request_inflight{router="pd"}'] == 0 and seen["infera_router_leases"] == 0
            assert sum(v for k, v in seen.items() if k.startswith("infera_pd_dispatch_duration_seconds_count")) in (13, 14)
            assert seen['infera_active_workers{disagg_mode="prefill"}'] == 2 and seen["infera_router_ready"] == 1
            # series of a worker that has left go
            rig.register(without=failing)
            text, seen = await page(rig)
            assert f'infera_router_decode_demand_requests{{target="{failing.worker_id}"}}' not in seen
            assert f'infera_pd_dispatch_duration_seconds_count{{leg="decode",worker_id="{failing.worker_id}"}}' not in seen

    run(body())


def test_promtool_accepts_the_page():
    if shutil.which("promtool") is None:
        pytest.skip("no promtool on this machine (Debian package prometheus)")

    async def body():
        async with Rig(2, 2, settings={"request_max_retries": 1}, prefill_ranks=2, decode_ranks=2) as rig:
            for fault in (None, {"decode": "status:500"}, {"prefill": "reset"}, {"decode": "rst:2"}):
                await rig.ask(rig.chat(True, fault))
            text, _ = await page(rig)
            done = await asyncio.to_thread(subprocess.run, ["promtool", "check", "metrics"], input=text, capture_output=True, text=True)
            # promtool also lints names; those of the specification that it would have otherwise are kept
            complaints = [line for line in done.stderr.splitlines() if line.strip()]
            assert done.returncode in (0, 3) and not complaints, complaints

    run(body())


def test_several_processes_add_up_and_dead_ones_stay_counted():
    one, two = Store(), Store()
    for store, number in ((one, 3), (two, 4)):
        store.add("infera_requests_total", ("pd", "ok"), number)
        store.set("infera_router_decode_demand_requests", ("d:1",), 9)  # each shows the sum of all
        store.set("infera_request_inflight", ("pd",), number)
        store.histogram("infera_time_to_first_token_seconds", ("pd",)).observe(0.2)
    both = merge([one.dump(), two.dump()])
    assert both.numbers["infera_requests_total"][("pd", "ok")] == 7
    assert both.numbers["infera_router_decode_demand_requests"][("d:1",)] == 9
    assert both.numbers["infera_request_inflight"][("pd",)] == 7
    assert sum(both.histograms["infera_time_to_first_token_seconds"][("pd",)].counts) == 2
    left = merge([json.loads(json.dumps(two.dump())), keep_counters(one.dump())])
    assert left.numbers["infera_requests_total"][("pd", "ok")] == 7 and left.numbers["infera_request_inflight"][("pd",)] == 4


def named(text):
    return {re.sub(r"_(bucket|sum|count)$", "", name) if re.sub(r"_(bucket|sum|count)$", "", name) in FAMILIES else name
            for name in re.findall(r"\binfera_[a-z0-9_]+", text)}


def test_alerts_and_dashboard_name_only_metrics_that_exist():
    rules = (MONITORING / "prometheus" / "infera-router.rules.yml").read_text()
    dashboard = json.loads((MONITORING / "grafana" / "infera-router.json").read_text())
    queries = " ".join(target["expr"] for panel in dashboard["panels"] for target in panel["targets"])
    assert named(rules) - {"infera_router"} <= set(FAMILIES) and named(queries) <= set(FAMILIES)
    for name, family in FAMILIES.items():
        if family.kind == HISTOGRAM and name in queries:
            assert not re.search(rf"\b{name}\b(?!_)", queries), f"{name} is a histogram; ask for its _bucket, _sum or _count"


def test_promtool_accepts_and_tries_the_rules():
    if shutil.which("promtool") is None:
        pytest.skip("no promtool on this machine (Debian package prometheus)")
    for command in ("check", "test"):
        file = "infera-router.rules.yml" if command == "check" else "infera-router.rules.test.yml"
        done = subprocess.run(["promtool", command, "rules", file], cwd=MONITORING / "prometheus", capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_a_real_prometheus_scrapes_it_and_evaluates_the_rules(tmp_path):
    if shutil.which("prometheus") is None:
        pytest.skip("no prometheus on this machine (Debian package prometheus)")
    (port,) = free_ports(1)

    async def query(expression):
        import urllib.parse
        import urllib.request

        def ask():
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/query?query={urllib.parse.quote(expression)}", timeout=5) as answer:
                return json.load(answer)["data"]["result"]

        try:
            return await asyncio.to_thread(ask)
        except OSError:
            return []

    async def value(expression, want, seconds=15):
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while True:
            found = await query(expression)
            if found and float(found[0]["value"][1]) == want:
                return
            assert loop.time() < end, (expression, found)
            await asyncio.sleep(0.2)

    async def body():
        async with Rig(1, 2) as rig:
            (tmp_path / "prometheus.yml").write_text(json.dumps({
                "global": {"scrape_interval": "500ms", "evaluation_interval": "500ms"},
                "rule_files": [str(MONITORING / "prometheus" / "infera-router.rules.yml")],
                "scrape_configs": [{"job_name": "infera-router", "static_configs": [{"targets": [f"127.0.0.1:{rig.port}"]}]}]}))
            log = open(tmp_path / "log", "wb")
            process = subprocess.Popen(["prometheus", "--config.file", str(tmp_path / "prometheus.yml"), "--storage.tsdb.path", str(tmp_path / "data"),
                                        "--web.listen-address", f"127.0.0.1:{port}"], stdout=log, stderr=log)
            try:
                for number in range(7):
                    assert (await rig.ask(rig.chat(bool(number % 2)))).status == 200
                await value('up{job="infera-router"}', 1)
                await value('infera_requests_total{outcome="ok",router="pd"}', 7)
                await value("count(infera_router_decode_demand_requests)", 2)
                await value("sum(infera_router_decode_demand_requests)", 0)
                await value("infera_time_to_first_token_seconds_count{router=\"pd\"}", 3)
                rules = await asyncio.to_thread(subprocess.run, ["promtool", "query", "instant", f"http://127.0.0.1:{port}", "ALERTS"],
                                                capture_output=True, text=True)
                assert rules.returncode == 0 and "InferaPrefillStalled" not in rules.stdout
                rig.app.core.policy.breaker.hold(rig.engines["prefill"][0].worker_id, "stalled")
                await value('ALERTS{alertname="InferaPrefillStalled",alertstate="firing"}', 1)
            finally:
                process.terminate()
                await eventually(lambda: process.poll() is not None, 10)
                log.close()

    run(body())

"""The emulator in real time: its surface as a router sees it, and one run over HTTP through the real router beside the virtual clock."""
import asyncio
import concurrent.futures
import dataclasses
import json
import urllib.error
import urllib.request

import pytest
from emulator_stack import FILE, stack, wait_for, word_tokenizer
from infera_emulator.balance import figures, parameters, virtual
from infera_emulator.balance.replay import Replay

pytestmark = pytest.mark.slow

SPEED = 4.0             # times faster than the trace
SCALE = 0.01            # words on the wire per prompt token
GIVEN = dataclasses.replace(parameters.load(FILE), warmup_s=40.0, duration_s=200.0)
CASE = GIVEN.case("1p1d-c88")


def get(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read().decode()


def chat(router, text, session=None, tokens=8, **more):
    body = json.dumps({"model": "emulated", "messages": [{"role": "user", "content": text}], "max_tokens": tokens, **more}).encode()
    headers = {"Content-Type": "application/json", **({"X-Correlation-ID": session} if session else {})}
    with urllib.request.urlopen(urllib.request.Request(f"{router}/v1/chat/completions", body, headers), timeout=30) as answer:
        return answer.read()


@pytest.mark.timeout(240)
def test_a_run_over_http_agrees_with_the_virtual_clock_within_a_tenth(tmp_path, weight=1_000_000):
    """The router counts words, so its weight is that of the trace times the words per token. On a busy machine once more at half the speed."""
    flags = ["--decode-input-demand", "on", "--decode-request-weight", str(weight * SCALE)]
    for speed in (SPEED, SPEED / 2):
        folder = tmp_path / f"at-{speed:g}"
        with stack(folder, CASE.name, CASE.prefills, speed, SCALE, word_tokenizer(folder / "model"), router_flags=flags, interval=32) as (router, decode):
            run = Replay(GIVEN, CASE, weight, 1, router, decode, "emulated", speed, SCALE)
            live = asyncio.run(run.run())
            demand = json.loads(get(f"{router}/v1/admin/demand"))
        print(f"\n{speed:g} times as fast; steps ended {1000 * run.late:.0f} ms of the trace late on average")
        if run.late < 0.05:
            break
    else:
        pytest.fail("this machine is too busy for a run in real time")
    virtually = virtual.run(GIVEN, CASE, weight, 1)
    print(figures.table([live, virtually]))
    assert run.errors == []
    assert demand["decisions"]["fallback"] == 0, "every prompt's size was known"
    for name in ("requests", "tok_s", "out_tok_s", "intvty_p50", "intvty_p90", "busiest_mean"):
        assert getattr(live, name) == pytest.approx(getattr(virtually, name), rel=0.10), name
    assert abs(live.busiest_p90 - virtually.busiest_p90) <= 1


def test_a_conversation_comes_back_to_the_prefill_that_holds_it(tmp_path):
    """kv-aware by the emulated prefills' own events: no session header, and a flushed cache is forgotten."""
    model = word_tokenizer(tmp_path / "model")
    flags = ["--router-policy", "kv-aware", "--kv-prefill-overlap-weight", "20", "--decode-input-demand", "on", "--decode-request-weight", "100"]
    with stack(tmp_path, "2p1d-c176", 2, 50.0, 1.0, model, True, flags) as (router, decode):
        prefills = {w["worker_id"]: w["url"] for w in json.loads(get(f"{router}/v1/workers"))["workers"] if w["disagg_mode"] == "prefill"}
        assert len(prefills) == 2

        def cached(text):
            return json.loads(chat(router, text))["usage"]["prompt_tokens_details"]["cached_tokens"]

        def settled(pages):
            for _ in range(100):
                seen = [json.loads(get(f"{router}/v1/admin/cache-view/{w}"))["blocks"] for w in prefills]
                if sum(seen) == pages:
                    return
                asyncio.run(asyncio.sleep(0.05))
            raise AssertionError(f"the router's views hold {seen} pages, not {pages} in all")

        texts = [" ".join(f"w{(n * 331 + i) % 2000}" for i in range(640)) for n in range(6)]
        assert [cached(t) for t in texts] == [0] * 6
        settled(60)
        assert [cached(t + " w1" * 64) for t in texts] == [640] * 6
        settled(66)
        for url in prefills.values():
            get(f"{url}/flush_cache")
        settled(0)
        assert cached(texts[0]) == 0
        assert json.loads(get(f"{decode}/v1/loads"))["loads"][0]["dp_rank"] == 0


def test_a_session_keeps_its_prefill_and_demand_keeps_the_ranks_level(tmp_path):
    flags = ["--session-affinity", "prefill", "--decode-input-demand", "on", "--decode-request-weight", "1000", "--demand-audit-interval", "0.2"]
    with stack(tmp_path, "2p1d-c176", 2, 50.0, 1.0, word_tokenizer(tmp_path / "model"), router_flags=flags) as (router, _decode):
        for turn in range(4):
            for session in "abcdef":
                chat(router, "w " * (50 + turn), session)
        page = get(f"{router}/metrics")
        picks = {line.split('worker_id="')[1].split('"')[0]: float(line.rpartition(" ")[2]) for line in page.splitlines()
                 if line.startswith("infera_router_picks_total") and 'role="prefill"' in line}
        assert sorted(picks.values()) == [12, 12]
        held = [line for line in page.splitlines() if line.startswith("infera_router_decode_demand_requests{")]
        assert len(held) == 8 and all(line.endswith(" 0.0") for line in held), "idle ranks have a series, at zero"
        assert 'infera_router_session_active{role="prefill"} 6.0' in page and 'infera_router_session_hits_total{role="prefill"} 18.0' in page

        def audited(difference, engine):
            page = get(f"{router}/metrics").splitlines()
            return (len([line for line in page if line.startswith("infera_router_decode_demand_difference{") and line.endswith(f" {difference}.0")]) == 8
                    and sum(float(line.rpartition(" ")[2]) for line in page if line.startswith("infera_router_decode_demand_engine_requests{")) == engine)

        wait_for(lambda: audited(0, 0), 5.0, "an audit of eight idle ranks")
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            longer = [pool.submit(chat, router, "w w", "a", 20_000) for _ in range(8)]
            wait_for(lambda: audited(0, 8), 10.0, "an audit with a request on each rank")
            assert all(b'"completion_tokens": 20000' in f.result() for f in longer)


def test_the_emulator_refuses_what_sglang_refuses(tmp_path):
    with stack(tmp_path, CASE.name, 1, 50.0) as (_router, decode):
        for body, why in (({"model": "emulated", "messages": []}, "bootstrap room"),
                          ({"messages": [], "bootstrap_room": 1, "bootstrap_host": "elsewhere", "bootstrap_port": 1}, "bootstrap address")):
            request = urllib.request.Request(f"{decode}/v1/chat/completions", json.dumps(body).encode())
            with pytest.raises(urllib.error.HTTPError) as caught:
                urllib.request.urlopen(request, timeout=10)
            assert caught.value.code == 400 and why in caught.value.read().decode()

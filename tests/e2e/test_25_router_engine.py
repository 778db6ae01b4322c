"""The router's data path with the real engine: every route, aborts, idle connections, a storm of cancels on a pipeline, workers that go."""
import concurrent.futures
import json
import random
import socket
import threading
import time

import anthropic
import openai
import pytest
import requests
from e2e import router_stack, support

CANCELS = 2000


@pytest.fixture(scope="module")
def stack(deployment):
    made = router_stack.RouterStack(deployment)
    try:
        made.start()
        yield made
    finally:
        made.stop()


def settled(stack, seconds=60):
    support.wait("empty queues and ledger", seconds, lambda: not any(stack.queues().values())
                 and not stack.metric("infera_router_decode_demand_requests") and not stack.metric("infera_prefill_orphans"))


def events(response):
    return [line[6:] for line in response.iter_lines(decode_unicode=True) if line.startswith("data: ")]


ROUTES = {
    "/v1/chat/completions": {"messages": support.PROMPT, "max_tokens": 6, "temperature": 0},
    "/v1/completions": {"prompt": "hello world", "max_tokens": 6, "temperature": 0},
    "/v1/responses": {"input": "hello world", "max_output_tokens": 6, "temperature": 0},
    "/v1/messages": {"messages": [{"role": "user", "content": "hello world"}], "max_tokens": 6, "temperature": 0},
    "/generate": {"text": "hello world", "sampling_params": {"max_new_tokens": 6, "temperature": 0}},
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("path", ROUTES)
def test_every_route_answers_on_both_prefills_and_both_ranks(stack, path, stream):
    for _ in range(4):
        response = requests.post(stack.url + path, json={"model": stack.model, **ROUTES[path], "stream": stream}, timeout=120, stream=stream)
        assert response.status_code == 200, response.text
        assert response.headers["x-infera-request-id"]
        if stream:
            assert response.headers["content-type"].startswith("text/event-stream")
            lines = events(response)
            assert len(lines) > 2 and not any('"error"' in line[:12] for line in lines)
        else:
            assert response.json()
    settled(stack)


def test_the_other_routes(stack):
    count = requests.post(stack.url + "/v1/messages/count_tokens", timeout=60,
                          json={"model": stack.model, "messages": [{"role": "user", "content": "hello world"}]})
    assert count.status_code == 200 and count.json()["input_tokens"] > 0
    for path in ("/health", "/ready", "/v1/models", "/v1/workers", "/v1/admin/demand", "/metrics"):
        assert requests.get(stack.url + path, timeout=10).status_code == 200
    workers = {worker["worker_id"]: worker for worker in stack.workers()}
    assert workers[f"127.0.0.1:{router_stack.PIPELINE}"]["pp_size"] == 2 and workers[f"127.0.0.1:{router_stack.DECODE}"]["dp_size"] == 2
    picked = {port: stack.metric("infera_router_picks_total", worker_id=f"127.0.0.1:{port}") for port in (router_stack.PIPELINE, router_stack.SINGLE)}
    assert all(picked.values()), picked


def test_status_codes_are_the_engines_own(stack):
    decode = f"http://127.0.0.1:{router_stack.DECODE}/v1/chat/completions"
    for change, status in (({"max_tokens": -1}, 400), ({"messages": "x"}, 400), ({"n": 0}, 400)):
        through, direct = stack.chat(**change), requests.post(decode, json=stack.body(**change), timeout=30)
        assert through.status_code == direct.status_code == status, (change, through.text, direct.text)
    assert requests.post(stack.url + "/v1/chat/completions", data=b"{", timeout=30).status_code == 400
    assert stack.chat(routed_dp_rank=1).status_code == 400
    assert stack.metric("infera_router_worker_breaker_trips_total") == 0
    settled(stack)


def test_connections_idle_for_six_seconds_fail_nothing(stack):
    """SGLang closes at 5 s, we at 3 s; nothing is seen of either."""
    failures = stack.metric("infera_leg_failures_total")
    with requests.Session() as session:
        for pause in (0, 6, 4.9, 5.0, 5.1, 2.9):
            time.sleep(pause)
            assert session.post(stack.url + "/v1/chat/completions", json=stack.body(max_tokens=2), timeout=60).status_code == 200
    assert stack.metric("infera_leg_failures_total") == failures and stack.metric("infera_request_retries_total") == 0


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_client_that_leaves_frees_both_engines(stack, stream):
    raw = router_stack.dumps(stack.body(max_tokens=1500, stream=stream)).encode()
    for wait in (0.0, 1.5):
        with socket.create_connection(("127.0.0.1", router_stack.ROUTER)) as client:
            client.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(raw) + raw)
            time.sleep(wait)
        support.wait("the booking to go", 2, lambda: not stack.metric("infera_router_decode_demand_requests"), every=0.05)
        settled(stack, 20)
    assert stack.metric("infera_aborts_total", leg="decode", result="ok") > 0


def test_the_official_clients(stack):
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
    with openai.OpenAI(base_url=stack.url + "/v1", api_key="none", max_retries=0) as client:
        assert client.models.list().data[0].id == stack.model
        whole = client.chat.completions.create(model=stack.model, messages=support.PROMPT, max_tokens=8, temperature=0)
        streamed = client.chat.completions.create(model=stack.model, messages=support.PROMPT, max_tokens=8, temperature=0, stream=True)
        assert "".join(c.choices[0].delta.content or "" for c in streamed if c.choices) == whole.choices[0].message.content
        assert client.responses.create(model=stack.model, input="hello", max_output_tokens=4).output
        forced = client.chat.completions.create(model=stack.model, messages=support.PROMPT, max_tokens=32, tools=[tool], tool_choice="required")
        turn = [*support.PROMPT, forced.choices[0].message.model_dump(exclude_none=True)]
        for call in forced.choices[0].message.tool_calls or ():
            turn.append({"role": "tool", "tool_call_id": call.id, "content": "seen"})
        assert client.chat.completions.create(model=stack.model, messages=turn, max_tokens=4, tools=[tool]).choices
        with pytest.raises(openai.BadRequestError):
            client.chat.completions.create(model=stack.model, messages=support.PROMPT, max_tokens=-1)
    with anthropic.Anthropic(base_url=stack.url, api_key="none", max_retries=0) as client:
        messages = [{"role": "user", "content": "hello"}]
        assert client.messages.create(model=stack.model, max_tokens=4, messages=messages).content
        with client.messages.stream(model=stack.model, max_tokens=4, messages=messages) as stream:
            assert stream.get_final_message().usage.output_tokens
        assert client.messages.count_tokens(model=stack.model, messages=messages).input_tokens
        with pytest.raises(anthropic.NotFoundError):
            client.messages.create(model="absent", max_tokens=4, messages=messages)


def test_a_storm_of_cancels_leaves_everything_serving(stack):
    """2,000 clients leave at random moments, before and after the first token, on a pipeline of two stages and a decode of two ranks.

    Afterwards every queue is empty and both prefills serve; or, where the engine locks itself up, the router says which and the other serves.
    """
    seed = random.SystemRandom().getrandbits(32)
    print(f"storm seed {seed}")
    rng = random.Random(seed)
    plans = [(rng.random() < 0.5, rng.choice((0.0, 0.01, 0.05, 0.2, 0.6)) * rng.random() * 2, rng.choice((1, 30, 200))) for _ in range(CANCELS)]
    plans[::40] = [(True, 15.0, 200)] * len(plans[::40])  # these wait for their first token, however slow the machine

    def one(plan):
        stream, patience, tokens = plan
        raw = router_stack.dumps(stack.body(max_tokens=tokens, stream=stream, messages=[{"role": "user", "content": "rail " * int(1 + tokens / 2)}])).encode()
        with socket.create_connection(("127.0.0.1", router_stack.ROUTER)) as client:
            client.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(raw) + raw)
            client.settimeout(patience or 0.001)
            try:
                return bool(client.recv(65536))
            except TimeoutError:
                return False

    started = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(24) as pool:
        answered = sum(pool.map(one, plans))
    print(f"{CANCELS} cancels in {time.monotonic() - started:.0f} s, {answered} after the first byte")
    assert 0 < answered < CANCELS
    pipeline = f"127.0.0.1:{router_stack.PIPELINE}"
    try:
        settled(stack, 90)
    except AssertionError:
        stalled = stack.metric("infera_prefill_stalled", worker_id=pipeline)
        print(f"queues {stack.queues()}, stalled {stalled}")
        assert stalled == 1 and "has made no progress" in stack.logs(), "an engine is stuck and the router does not say so"
    for _ in range(8):
        assert stack.chat(timeout=60).status_code == 200
    assert stack.metric("infera_router_leases") == 0 and stack.metric("infera_router_leases_lost_total") == 0


def test_sigterm_of_one_of_two_prefills_under_load_fails_no_request(stack):
    stop, statuses = threading.Event(), []

    def load():
        while not stop.is_set():
            response = stack.chat(timeout=120, max_tokens=3)
            statuses.append(response.status_code)

    crowd = [threading.Thread(target=load) for _ in range(4)]
    for thread in crowd:
        thread.start()
    time.sleep(1)
    stack.containers["e2e-router-single"].kill("SIGTERM")
    support.wait("its record to go", 120, lambda: stack.active().get("prefill") == 1 and len(stack.workers()) == 2, every=0.5)
    time.sleep(1)
    stop.set()
    for thread in crowd:
        thread.join()
    assert statuses and set(statuses) == {200}, {status: statuses.count(status) for status in statuses}


def test_sigterm_of_the_only_decode_cuts_no_accepted_request(stack):
    response = stack.chat(stream=True, max_tokens=200)
    lines = response.iter_lines(decode_unicode=True)
    next(line for line in lines if line.startswith("data: "))
    stack.containers["e2e-router-decode"].kill("SIGTERM")
    support.wait("the decode to drain", 30, lambda: not stack.active().get("decode"))
    refused = stack.chat(timeout=10)
    assert refused.status_code == 503 and refused.headers["Retry-After"] and "decode" in refused.text
    rest = [line for line in lines if line.startswith("data: ")]
    assert rest[-1] == "data: [DONE]" and not any('"error"' in line[:16] for line in rest)


def test_killing_the_decode_ends_a_stream_with_one_event_and_killing_the_prefill_answers_at_once(stack):
    support.wait("the old decode to end", 120, lambda: stack.deployment.container("e2e-router-decode").status == "exited", every=1)
    stack.engine("e2e-router-decode", "decode", router_stack.DECODE, {"--tp-size": "2", "--attn-dp-size": "2"}, router_stack.TWO_RANKS,
                 ["--no-enable-tp-lm-head-all-to-all"])
    support.wait("a new decode", 300, lambda: stack.active().get("decode") == 1, every=1)
    assert stack.chat(timeout=60).status_code == 200
    # a long prompt keeps the only prefill busy while it is killed
    outcome = {}

    def ask():
        begun = time.monotonic()
        answer = stack.chat(timeout=120, messages=[{"role": "user", "content": "rail " * 1200}])
        outcome.update(status=answer.status_code, text=answer.text, took=time.monotonic() - begun)

    waiting = threading.Thread(target=ask)
    stream = stack.chat(stream=True, max_tokens=1500)
    lines = stream.iter_lines(decode_unicode=True)
    next(line for line in lines if line.startswith("data: "))
    waiting.start()
    time.sleep(0.15)
    killed = time.monotonic()
    stack.containers["e2e-router-pipeline"].kill("SIGKILL")
    waiting.join(60)
    print(f"prefill killed: {outcome}")
    assert outcome["status"] == 200 or outcome["status"] in (502, 503) and "prefill" in outcome["text"]
    assert time.monotonic() - killed < 5 or outcome["status"] == 200
    stack.containers["e2e-router-decode"].kill("SIGKILL")
    rest = [line[6:] for line in lines if line.startswith("data: ")]
    errors = [line for line in rest if line.startswith('{"error"')]
    assert len(errors) == 1 and rest[-1] == errors[0] and json.loads(errors[0])["error"]["code"] == "engine_error", rest[-3:]
    support.wait("an empty ledger", 10, lambda: not stack.metric("infera_router_decode_demand_requests"))

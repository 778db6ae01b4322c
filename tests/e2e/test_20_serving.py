"""What a client sees of the real engines through the router."""
import json

import requests
from e2e import support


def test_streamed_answer_has_one_usage_and_done(deployment):
    response = deployment.chat(stream=True, stream_options={"include_usage": True})
    assert response.status_code == 200 and response.headers["content-type"].startswith("text/event-stream")
    lines, chunks, text = support.events(response)
    assert lines[-1] == "[DONE]" and sum(bool(c.get("usage")) for c in chunks) == 1
    assert text == deployment.chat().json()["choices"][0]["message"]["content"]


def test_the_same_tokens_from_pd_and_from_one_engine(deployment):
    """Greedy tokens through router, prefill and decode equal those of one aggregated engine of the same image and model."""
    prompts = ["hello world", "Rails carry KV from prefill to decode. " * 40, "def f(x):\n    return"]
    body = {"model": deployment.model, "max_tokens": 24, "temperature": 0, "logprobs": 1}

    def texts(url):
        out = []
        for prompt in prompts:
            answer = requests.post(url + "/v1/completions", json={**body, "prompt": prompt}, timeout=120)
            assert answer.status_code == 200, answer.text
            choice = answer.json()["choices"][0]
            out.append((choice["text"], choice["logprobs"]["tokens"]))
        return out

    through_pd = texts(deployment.url)
    record = deployment.record
    decode = next(c for c in record["containers"] if c["role"] == "decode")
    mounts = deployment.container(decode["name"]).attrs["HostConfig"]["Binds"] or []
    model = decode["argv"][decode["argv"].index("--model-path") + 1]
    port = 28100
    mounts = {m.split(":")[0]: {"bind": m.split(":")[1], "mode": "ro"} for m in mounts}
    for mount in deployment.container(decode["name"]).attrs["HostConfig"]["Mounts"] or []:
        mounts[mount["Source"]] = {"bind": mount["Target"], "mode": "ro"}
    engine = deployment.docker.containers.run(
        decode["image"], ["python3", "-m", "sglang.launch_server", "--model-path", model, "--served-model-name", deployment.model, "--device", "cpu",
                          "--attention-backend", "torch_native", "--host", "127.0.0.1", "--port", str(port), "--max-total-tokens", "8192",
                          "--mem-fraction-static", "0.1", "--sleep-on-idle"],
        entrypoint="", name="e2e-mixed", detach=True, network_mode="host", volumes=mounts,
        environment={k: v for k, v in decode["env"].items() if not k.startswith(("INFERA_", "MC_"))})
    try:
        def healthy():
            try:
                return requests.get(f"http://127.0.0.1:{port}/health", timeout=5).status_code == 200
            except requests.RequestException:
                return False
        support.wait("the aggregated engine", 240, healthy, every=1)
        assert texts(f"http://127.0.0.1:{port}") == through_pd
    finally:
        print(engine.logs(tail=20).decode())
        engine.remove(force=True)


def test_models_and_metrics(deployment):
    assert [m["id"] for m in deployment.get("/v1/models").json()["data"]] == [deployment.model]
    assert deployment.get("/ready").status_code == 200
    gauges = deployment.metric("infera_router_decode_demand_requests")
    assert gauges and all(value == 0 for value in gauges.values()), gauges


def test_demand_is_held_while_a_stream_runs(deployment):
    response = deployment.chat(stream=True, max_tokens=300, ignore_eos=True)
    lines = response.iter_lines(decode_unicode=True)
    next(line for line in lines if line.startswith("data: "))
    assert sum(deployment.metric("infera_router_decode_demand_requests").values()) == 1
    assert sum(deployment.metric("infera_router_decode_demand_tokens").values()) > 0
    for _line in lines:
        pass
    support.wait("the demand gauge at 0", 5, lambda: not sum(deployment.metric("infera_router_decode_demand_requests").values()))


def test_an_unknown_model_is_refused(deployment):
    answer = requests.post(deployment.url + "/v1/chat/completions", json={"model": "other", "messages": support.PROMPT}, timeout=10)
    assert answer.status_code in (404, 503) and "other" in json.dumps(answer.json())

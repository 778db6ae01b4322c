"""A second, kv-aware router over real engines: the deployment's own prefill behind a proxy of its KV events, one more prefill, and a decode of
two ranks. It has its own prefix in the deployment's etcd, so the deployment's router sees nothing of it."""
import base64
import json
import threading
import time

import msgspec
import requests
import zmq
from e2e import support

PREFIX = "/e2e-kv/"
PREFILL, DECODE, ROUTER, PROXY = 26000, 26400, 26900, 26990  # below the ephemeral range


class EventProxy:
    """Passes one rank's KV events on, and loses the batches it is told to lose."""

    def __init__(self, source: str, port: int):
        self.context = zmq.Context()
        self.sub, self.pub = self.context.socket(zmq.SUB), self.context.socket(zmq.PUB)
        self.sub.setsockopt(zmq.SUBSCRIBE, b"")
        self.sub.connect(source)
        self.pub.bind(f"tcp://127.0.0.1:{port}")
        self.lose = 0
        self.lost = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        while not self._stop.is_set():
            if self.sub.poll(50):
                frames = self.sub.recv_multipart()
                if self.lose:
                    self.lose -= 1
                    self.lost += 1
                else:
                    self.pub.send_multipart(frames)

    def close(self):
        self._stop.set()
        self._thread.join()
        self.context.destroy(0)


def option(argv, name, value):
    """argv with an option's value replaced, or the option added."""
    argv = list(argv)
    if name in argv:
        argv[argv.index(name) + 1] = value
    else:
        argv += [name, value]
    return argv


def published(replay_endpoint):
    """{event id: media} by a rank's own history, read with nothing of the router's: from the first batch to the newest."""
    context = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.setsockopt(zmq.LINGER, 0)
    dealer.setsockopt(zmq.RCVHWM, 0)
    dealer.connect(replay_endpoint)
    dealer.send_multipart([b"", (0).to_bytes(8, "big")])
    pages, expected = {}, 0
    try:
        while True:
            assert dealer.poll(5000), "no end of the replay"
            *_, sequence, payload = dealer.recv_multipart()[:4]
            if sequence == (-1).to_bytes(8, "big", signed=True):
                return pages
            assert int.from_bytes(sequence, "big") == expected, "the history begins later or has a hole"
            expected += 1
            for event in msgspec.msgpack.decode(payload)[1]:
                kind, medium = event["type"], event.get("medium")
                if kind == "AllBlocksCleared":
                    pages = {}
                for page in event.get("block_hashes", ()):
                    if kind == "BlockStored":
                        pages.setdefault(page, set()).add(medium)
                    else:
                        pages.get(page, set()).discard(medium)
                pages = {page: media for page, media in pages.items() if media}
    finally:
        context.destroy(0)


class Stack:
    def __init__(self, deployment):
        self.deployment = deployment
        # Removing a container waits for its end, which takes long on a busy machine.
        deployment.docker.api.timeout = 300
        record = deployment.record
        self.plans = {role: next(c for c in record["containers"] if c["role"] == role) for role in ("prefill", "decode", "router")}
        self.etcd = record["settings"]["etcd_endpoints"][0]
        self.model = record["model"]["name"]
        self.url = f"http://127.0.0.1:{ROUTER}"
        self.containers = {}
        self.proxy = None
        self.first = f"127.0.0.1:{self.plans['prefill']['ports']['http']}"
        self.second = f"127.0.0.1:{PREFILL}"
        self.replays = {}

    # ---- parts

    def _run(self, name, plan, argv, environment, entrypoint=None):
        config = self.deployment.container(plan["name"]).attrs["HostConfig"]
        volumes = {m["Source"]: {"bind": m["Target"], "mode": "ro"} for m in config["Mounts"] or []}
        for bind in config["Binds"] or []:
            volumes[bind.split(":")[0]] = {"bind": bind.split(":")[1], "mode": "ro"}
        for old in self.deployment.docker.containers.list(all=True, filters={"name": f"^{name}$"}):
            old.remove(force=True)
        self.containers[name] = self.deployment.docker.containers.run(
            plan["image"], argv, entrypoint=entrypoint, name=name, detach=True, network_mode="host", volumes=volumes, environment=environment,
            ipc_mode="host")

    def _engine(self, name, role, port, changes, environment=None, more=()):
        plan = self.plans[role]
        argv = plan["argv"][plan["argv"].index("--") + 1:]
        for key, value in {"--port": str(port), **changes}.items():
            argv = option(argv, key, value)
        self._run(name, plan, ["python3", "-m", "sglang.launch_server", *argv, *more], {**plan["env"], **(environment or {})}, entrypoint="")

    def _record(self, worker_id, role, events=None, replay=None, ranks=1, bootstrap=None):
        params = {"bootstrap_addr": f"127.0.0.1:{bootstrap}"} if bootstrap else {}
        value = {"schema": 1, "worker_id": worker_id, "url": f"http://{worker_id}", "model_name": self.model, "engine": "sglang", "status": "active",
                 "disagg_mode": role, "disagg_meta": {"protocol": "sglang-bootstrap", "params": params}, "dp_rank": None,
                 "dp_size": ranks if ranks > 1 else None, "kv_events_endpoint": events, "kv_replay_endpoint": replay, "kv_topic": "kv-events",
                 "page_size": self.page_size, "kv_block_size": self.page_size, "request_transport": "http"}
        self._etcd("put", {"key": PREFIX + worker_id, "value": json.dumps(value)})

    def _etcd(self, call, body):
        coded = {key: base64.b64encode(value.encode()).decode() for key, value in body.items()}
        requests.post(f"{self.etcd}/v3/kv/{call}", json=coded, timeout=10).raise_for_status()

    # ---- life

    def start(self):
        ports = self.plans["prefill"]["ports"]
        self.page_size = requests.get(f"http://{self.first}/server_info", timeout=10).json()["page_size"]
        self._engine("e2e-kv-prefill", "prefill", PREFILL, {
            "--disaggregation-bootstrap-port": str(PREFILL + 300),
            "--kv-events-config": json.dumps({"publisher": "zmq", "topic": "kv-events", "bind": True, "endpoint": f"tcp://127.0.0.1:{PREFILL + 310}",
                                              "replay_endpoint": f"tcp://127.0.0.1:{PREFILL + 340}"})})
        self._engine("e2e-kv-decode", "decode", DECODE, {"--tp-size": "2", "--attn-dp-size": "2"}, {"SGLANG_CPU_OMP_THREADS_BIND": "0|1"},
                     ["--no-enable-tp-lm-head-all-to-all"])
        self.proxy = EventProxy(f"tcp://127.0.0.1:{ports['kv_events']}", PROXY)
        self.replays = {self.first: f"tcp://127.0.0.1:{ports['kv_replay']}", self.second: f"tcp://127.0.0.1:{PREFILL + 340}"}
        self._record(self.first, "prefill", f"tcp://127.0.0.1:{PROXY}", self.replays[self.first], bootstrap=ports["bootstrap"])
        self._record(self.second, "prefill", f"tcp://127.0.0.1:{PREFILL + 310}", self.replays[self.second], bootstrap=PREFILL + 300)
        self._record(f"127.0.0.1:{DECODE}", "decode", ranks=2)
        self.start_router()
        for worker in (self.second, f"127.0.0.1:{DECODE}"):
            self.wait_healthy(worker)

    def start_router(self):
        argv = self.plans["router"]["argv"]
        for key, value in {"--port": str(ROUTER), "--etcd-prefix": PREFIX, "--router-policy": "kv-aware", "--kv-prefill-overlap-weight": "20",
                           "--kv-decode-overlap-weight": "2", "--decode-input-demand": "on", "--decode-request-weight": "0"}.items():
            argv = option(argv, key, value)
        self._run("e2e-kv-router", self.plans["router"], argv, {})
        support.wait("the kv-aware router", 60, self.ready)

    def ready(self):
        try:
            return requests.get(self.url + "/ready", timeout=5).status_code == 200
        except requests.RequestException:
            return False

    def wait_healthy(self, worker, seconds=300):
        def healthy():
            try:
                return requests.get(f"http://{worker}/health", timeout=5).status_code == 200
            except requests.RequestException:
                return False
        return support.wait(f"the engine {worker}", seconds, healthy, every=1)[1]

    def stop(self):
        if self.proxy is not None:
            self.proxy.close()
        self._etcd("deleterange", {"key": PREFIX, "range_end": PREFIX[:-1] + chr(ord(PREFIX[-1]) + 1)})
        for name, container in self.containers.items():
            print(f"--- {name}\n{container.logs(tail=25).decode(errors='replace')}")
            container.remove(force=True)

    # ---- what tests ask

    def post(self, route, body, **options):
        answer = requests.post(self.url + route, json={"model": self.model, **body}, timeout=120, **options)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def metrics(self):
        return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in requests.get(self.url + "/metrics", timeout=10).text.splitlines()
                if line and not line.startswith("#")}

    def metric(self, name, **labels):
        """Sum of a metric's series that have these labels."""
        return sum(value for series, value in self.metrics().items()
                   if series.partition("{")[0] == name and all(f'{key}="{text}"' in series for key, text in labels.items()))

    def view(self, worker):
        """{event id: tiers} that the router believes the worker to hold."""
        answer = requests.get(f"{self.url}/v1/admin/cache-view/{worker}?pages=1", timeout=10).json()
        return {int(page): tiers for page, tiers in answer["pages"][worker].items()}

    def wait_view(self, worker, seconds, want):
        return support.wait(f"the view of {worker}", seconds, lambda: want(self.view(worker)), every=0.05)[1]

    def wait_in_step(self, *workers, seconds=10):
        """Until the router's view of each worker is what the worker's own history says."""
        for worker in workers or (self.first, self.second):
            started = time.monotonic()
            while set(self.view(worker)) != set(published(self.replays[worker])):
                assert time.monotonic() - started < seconds, f"{worker}: {len(self.view(worker))} pages, published {len(published(self.replays[worker]))}"
                time.sleep(0.1)

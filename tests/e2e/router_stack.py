"""A second fleet of real engines for the router's own tests: two prefills (one a pipeline of two stages) and a decode of two ranks, each under its
supervisor, with a router of their own. They live under a prefix of their own in the deployment's etcd."""
import base64
import json

import requests
from e2e import support

PREFIX = "/e2e-router/"
PIPELINE, SINGLE, DECODE, ROUTER = 24000, 24400, 24800, 25300  # below the ephemeral range
TWO_RANKS = {"SGLANG_CPU_OMP_THREADS_BIND": "0|1"}


def option(argv, name, value):
    """argv with an option's value replaced, or the option added."""
    argv = list(argv)
    if name in argv:
        argv[argv.index(name) + 1] = value
    else:
        argv += [name, value]
    return argv


class RouterStack:
    def __init__(self, deployment, prefill_abort="auto"):
        self.deployment, self.prefill_abort = deployment, prefill_abort
        deployment.docker.api.timeout = 300
        record = deployment.record
        self.plans = {role: next(c for c in record["containers"] if c["role"] == role) for role in ("prefill", "decode", "router")}
        self.etcd = record["settings"]["etcd_endpoints"][0]
        self.model = record["model"]["name"]
        self.url = f"http://127.0.0.1:{ROUTER}"
        self.containers = {}

    def start(self):
        self.engine("e2e-router-pipeline", "prefill", PIPELINE, {"--pp-size": "2"}, TWO_RANKS)
        self.engine("e2e-router-single", "prefill", SINGLE)
        self.engine("e2e-router-decode", "decode", DECODE, {"--tp-size": "2", "--attn-dp-size": "2"}, TWO_RANKS, ["--no-enable-tp-lm-head-all-to-all"])
        argv = self.plans["router"]["argv"]
        for name, value in {"--port": str(ROUTER), "--etcd-prefix": PREFIX, "--decode-input-demand": "on", "--decode-request-weight": "1000000",
                            "--prefill-abort": self.prefill_abort, "--request-max-retries": "1", "--prefill-stall-timeout": "30"}.items():
            argv = option(argv, name, value)
        self._run("e2e-router-router", self.plans["router"], argv, {})
        support.wait("two prefills and a decode", 400, lambda: self.active() == {"prefill": 2, "decode": 1}, every=1)

    def engine(self, name, role, port, changes=None, environment=None, more=()):
        plan = self.plans[role]
        at = plan["argv"].index("--")
        supervisor, argv = option(plan["argv"][:at], "--etcd-prefix", PREFIX), plan["argv"][at + 1:]
        changes = {"--port": str(port), **(changes or {})}
        if role == "prefill":
            changes["--disaggregation-bootstrap-port"] = str(port + 300)
        if "--kv-events-config" in argv:
            config = json.loads(argv[argv.index("--kv-events-config") + 1])
            changes["--kv-events-config"] = json.dumps({**config, "endpoint": f"tcp://127.0.0.1:{port + 310}",
                                                        "replay_endpoint": f"tcp://127.0.0.1:{port + 340}"})
        for flag, value in changes.items():
            argv = option(argv, flag, value)
        self._run(name, plan, [*supervisor, "--", *argv, *more], {**plan["env"], **(environment or {})})

    def _run(self, name, plan, argv, environment):
        config = self.deployment.container(plan["name"]).attrs["HostConfig"]
        volumes = {m["Source"]: {"bind": m["Target"], "mode": "ro"} for m in config["Mounts"] or []}
        for bind in config["Binds"] or []:
            volumes[bind.split(":")[0]] = {"bind": bind.split(":")[1], "mode": "ro"}
        for old in self.deployment.docker.containers.list(all=True, filters={"name": f"^{name}$"}):
            old.remove(force=True)
        # the plan's argv begins with the command, which is also the image's entrypoint
        self.containers[name] = self.deployment.docker.containers.run(
            plan["image"], argv, entrypoint="", name=name, detach=True, network_mode="host", volumes=volumes, environment=environment, ipc_mode="host")

    def stop(self):
        for name, container in self.containers.items():
            print(f"--- {name}\n{container.logs(tail=40).decode(errors='replace')}")
            container.remove(force=True)
        coded = {key: base64.b64encode(value.encode()).decode() for key, value in {"key": PREFIX, "range_end": PREFIX[:-1] + "0"}.items()}
        requests.post(f"{self.etcd}/v3/kv/deleterange", json=coded, timeout=10).raise_for_status()

    # ---- what tests ask

    def workers(self):
        try:
            return requests.get(self.url + "/v1/workers", timeout=5).json()["workers"]
        except requests.RequestException:
            return []

    def active(self):
        counts = {}
        for worker in self.workers():
            if worker["status"] == "active":
                counts[worker["disagg_mode"]] = counts.get(worker["disagg_mode"], 0) + 1
        return counts

    def metric(self, name, **labels):
        """Sum of a metric's series that have these labels."""
        total = 0.0
        for line in requests.get(self.url + "/metrics", timeout=10).text.splitlines():
            series, _, value = line.rpartition(" ")
            if series.partition("{")[0] == name and all(f'{key}="{text}"' in series for key, text in labels.items()):
                total += float(value)
        return total

    def body(self, **more):
        return {"model": self.model, "messages": support.PROMPT, "max_tokens": 8, "temperature": 0, "ignore_eos": True, **more}

    def chat(self, timeout=120, **more):
        return requests.post(self.url + "/v1/chat/completions", json=self.body(**more), timeout=timeout, stream=bool(more.get("stream")))

    def queues(self):
        """Requests in any queue of any engine, by its port; -1 where it does not answer."""
        out = {}
        for port in (PIPELINE, SINGLE, DECODE):
            try:
                rows = requests.get(f"http://127.0.0.1:{port}/v1/loads", timeout=5).json()["loads"]
            except (requests.RequestException, ValueError):
                out[port] = -1
                continue
            out[port] = sum(row["num_running_reqs"] + row["num_waiting_reqs"] + sum(
                value for name, value in (row.get("disaggregation") or {}).items() if name.endswith("_queue_reqs")) for row in rows)
        return out

    def logs(self):
        return self.containers["e2e-router-router"].logs().decode(errors="replace")


def dumps(value):
    return json.dumps(value, separators=(",", ":"))

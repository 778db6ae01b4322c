"""What the end-to-end tests share: the deployment as its run record describes it, HTTP, and the make targets."""
import functools
import http.client
import json
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import threading
import time
import urllib.parse

import docker
import requests

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROMPT = [{"role": "user", "content": "Count the rails of one host and name the last one."}]


def run(*argv, limit=900, check=True, env=None, cwd=ROOT):
    """Run a command in the checkout, at most *limit* seconds; return (exit code, output). Output goes to the test's captured stdout too."""
    started = time.monotonic()
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen(argv, cwd=cwd, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
                                   env={**os.environ, **(env or {})})
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            code = f"none: ended after {limit} s"
        out.seek(0)
        output = out.read()
    print(f"$ {' '.join(argv)}\n{output}\nexit {code}, {time.monotonic() - started:.1f} s")
    assert isinstance(code, int), f"{' '.join(argv)} took more than {limit} s:\n{output[-6000:]}"
    if check:
        assert code == 0, f"{' '.join(argv)} failed:\n{output[-6000:]}"
    return code, output


def play(*argv, inventory="inventories/local", **options):
    """Run a playbook against inventories/local, or a copy of it."""
    return run(str(ROOT / ".venv" / "bin" / "ansible-playbook"), *argv, "-i", str(ROOT / inventory), "-l", "local", **options)


def changed(output):
    """Sum of changed= over the recap's hosts."""
    counts = re.findall(r"changed=(\d+)", output)
    assert counts, "no recap in the output"
    return sum(map(int, counts))


def wait(what, seconds, probe, every=0.2):
    """Poll probe() until it gives something true; return it and the seconds it took."""
    started = time.monotonic()
    while True:
        value = probe()
        took = time.monotonic() - started
        if value:
            return value, took
        assert took < seconds, f"{what}: not within {seconds} s"
        time.sleep(every)


class Knocking:
    """Asks a URL over a new connection each time, *rate* times a second, in threads; ``failed`` lists what was no 200."""

    def __init__(self, url, rate, threads=8):
        parts = urllib.parse.urlsplit(url)
        self._host, self._port, self._path = parts.hostname, parts.port, parts.path
        self._pause, self._over = threads / rate, threading.Event()
        self.asked, self.failed, self._lock = 0, [], threading.Lock()
        self._threads = [threading.Thread(target=self._knock, daemon=True) for _ in range(threads)]

    def _knock(self):
        due = time.monotonic()
        while not self._over.is_set():
            try:
                connection = http.client.HTTPConnection(self._host, self._port, timeout=10)
                connection.request("GET", self._path, headers={"Connection": "close"})
                status = connection.getresponse().status
                connection.close()
                problem = None if status == 200 else f"HTTP {status}"
            except (OSError, http.client.HTTPException) as error:
                problem = repr(error)
            with self._lock:
                self.asked += 1
                if problem:
                    self.failed.append(problem)
            due += self._pause
            time.sleep(max(0.0, due - time.monotonic()))

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_exc):
        self._over.set()
        for thread in self._threads:
            thread.join(timeout=30)


class Deployment:
    """The local deployment, found through runs/local/run.json alone."""

    def __init__(self, path=ROOT / "runs" / "local" / "run.json"):
        self.path = path

    @functools.cached_property
    def docker(self):
        """A client of the Docker engine: asked for late, since the deployment itself installs and starts the engine."""
        return docker.from_env()

    @property
    def record(self):
        return json.loads(self.path.read_text())

    @property
    def url(self):
        return self.record["router_url"]

    @property
    def model(self):
        return self.record["model"]["name"]

    def names(self, role):
        return [c["name"] for c in self.record["containers"] if c["role"] == role]

    def container(self, name):
        return self.docker.containers.get(name)

    def identities(self):
        """{name: (container id, start time)} of the deployment's containers."""
        label = f"infera.serving.deployment={self.record['id']}"
        return {c.name: (c.id, c.attrs["State"]["StartedAt"]) for c in self.docker.containers.list(filters={"label": label})}

    def get(self, path, **options):
        return requests.get(self.url + path, timeout=options.pop("timeout", 10), **options)

    def workers(self):
        return self.get("/v1/workers").json()["workers"]

    def chat(self, messages=None, timeout=120, **fields):
        body = {"model": self.model, "messages": messages or PROMPT, "max_tokens": 16, "temperature": 0, **fields}
        return requests.post(self.url + "/v1/chat/completions", json=body, timeout=timeout, stream=bool(fields.get("stream")))

    def metric(self, name):
        """{label text: value} of one metric of the router."""
        out = {}
        for line in self.get("/metrics").text.splitlines():
            match = re.fullmatch(rf"{re.escape(name)}(\{{.*\}})? (\S+)", line)
            if match:
                out[match.group(1) or ""] = float(match.group(2))
        return out

    def child(self, name, command="sglang.launch_server"):
        """Host pid of the first process below a container's whose command line holds the text."""
        root = self.container(name).attrs["State"]["Pid"]
        parents = {}
        for entry in pathlib.Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    parents.setdefault(int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1]), []).append(int(entry.name))
                except (OSError, IndexError):
                    continue
        queue = [root]
        while queue:
            pid = queue.pop(0)
            try:
                line = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if command in line and "infera-engine" not in line:
                return pid
            queue += parents.get(pid, [])
        raise AssertionError(f"no {command} below {name}")

    def evidence(self, lines=2):
        """On one line, for a failure's message: what the router holds of its workers, and the last log lines of all containers."""
        try:
            workers = [f"{w['worker_id']} {w['disagg_mode']} {w['status']} breaker={w['breaker']} held_out={w['held_out']}" for w in self.workers()]
        except (requests.RequestException, ValueError, KeyError) as error:
            workers = [repr(error)]
        logs = []
        for container in self.docker.containers.list(all=True, filters={"label": f"infera.serving.deployment={self.record['id']}"}):
            said = container.logs(tail=400).decode(errors="replace").splitlines()
            telling = [line for line in said if re.search(r"warning|error|Traceback|Error", line)] or said
            logs.append(f"{container.name}: " + " | ".join(line[:160] for line in telling[-lines:]))
        return "; ".join(workers + logs)

    def wait_serving(self, seconds=240):
        """Until a completion is answered again; return the seconds it took."""
        def probe():
            try:
                return self.chat(timeout=30, max_tokens=2).status_code == 200
            except requests.RequestException:
                return False
        return wait("a completion", seconds, probe, every=0.5)[1]


def events(response):
    """The data lines of a streamed answer, [DONE] included, and the text of its deltas."""
    lines = [line[6:] for line in response.iter_lines(decode_unicode=True) if line.startswith("data: ")]
    chunks = [json.loads(line) for line in lines if line != "[DONE]"]
    text = "".join((c["choices"][0]["delta"].get("content") or "") for c in chunks if c.get("choices"))
    return lines, chunks, text

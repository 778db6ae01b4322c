"""A deployment on the three hosts: its inventory, its playbooks, what its run record says, and the hosts' view of its containers."""
import json
import re

import requests
from fleet import lab

SMALL = {
    # Published shapes in miniature: prefills of two pipeline stages, decodes of two attention data-parallel ranks.
    "infera_shape": "fleet-small", "infera_flavour": "cpu", "infera_model_make": {"vocab": 8192, "context": 65536, "layers": 2},
    "infera_served_model_name": "tiny", "prefill_workers": 2, "prefill_gpus": 2, "decode_workers": 2, "decode_gpus": 2,
    "router_policy": "kv-aware", "router_session_affinity": "prefill", "decode_input_demand": "on",
    "engine_max_total_tokens": 65536, "engine_mem_fraction_static": 0.1, "engine_ready_timeout": 900, "engine_lease_ttl": 10,
    "engine_drain_timeout": 120, "router_drain_timeout": 120,
}
# p0 and d1 on fleet-a, p1 and d0 on fleet-b: KV crosses hosts, and either host can serve alone. With one of each they are p0 and d0.
GROUPS = {"etcd": ["fleet-a", "fleet-b", "fleet-c"], "prefill": ["fleet-a", "fleet-b"], "decode": ["fleet-b", "fleet-a"], "mixed": [],
          "router": ["fleet-c"], "builder": [lab.BUILDER]}
PROMPT = [{"role": "user", "content": "Count the rails of one host and name the last one."}]


class Deployment:
    """Named *name*; *values* are group_vars over SMALL."""

    def __init__(self, name="fleet", groups=None, **values):
        self.name, self.groups = name, {**GROUPS, **(groups or {})}
        self.values = {**SMALL, "infera_deployment_id": name, **values}
        self.inventory = lab.FOLDER / name / "hosts.yml"
        self.runs = lab.FOLDER / "runs"

    def write_inventory(self):
        """JSON is YAML. The weight's line is the shipped one."""
        weight = '{{ DECODE_REQUEST_WEIGHT | default(0) }}'
        hosts = {host: {"ansible_host": address} for host, address in lab.HOSTS.items()}
        common = {
            "ansible_user": lab.USER, "ansible_ssh_private_key_file": str(lab.FOLDER / "id_ed25519"),
            "ansible_ssh_common_args": f"-o UserKnownHostsFile={lab.FOLDER / 'known_hosts'} -o IdentitiesOnly=yes",
            "ansible_python_interpreter": "/usr/bin/python3", "ansible_timeout": 60, "image_registry": lab.REGISTRY, "image_etcd_source": "debian",
            "infera_runs_dir": str(self.runs), "infera_site_file": str(self.inventory), "preflight_min_memory_gb": 4, "preflight_min_disk_gb": 5,
            "decode_request_weight": weight, **self.values}
        children = {name: {"hosts": dict.fromkeys(members)} for name, members in self.groups.items()}
        self.inventory.parent.mkdir(parents=True, exist_ok=True)
        self.inventory.write_text(json.dumps({"all": {"vars": common, "children": {"mi355x": {"hosts": hosts}, **children}}}, indent=1))

    # ---- playbooks, as an operator types them

    def play(self, playbook, *argv, limit="mi355x", **options):
        self.write_inventory()
        return lab.sh(".venv/bin/ansible-playbook", playbook, "-i", str(self.inventory), "-l", limit, *argv, limit=1800, **options)

    # ---- what is there

    @property
    def record(self):
        return json.loads((self.runs / self.name / "run.json").read_text())

    @property
    def url(self):
        return self.record["router_url"]

    def containers(self, role=None):
        """{name: host} by the run record."""
        return {c["name"]: c["host"] for c in self.record["containers"] if role in (None, c["role"])}

    def identities(self, hosts=lab.HOSTS):
        """{name: (id, start time)} of the running containers, by the hosts' own Docker."""
        found = {}
        for host in hosts:
            names = lab.on(host, "docker", "ps", "--filter", f"label=infera.serving.deployment={self.name}", "--format", "{{.Names}}").split()
            if names:
                lines = lab.on(host, "docker", "inspect", "--format", "{{.Name}} {{.Id}} {{.State.StartedAt}}", *names).splitlines()
                found.update({line.split()[0].lstrip("/"): tuple(line.split()[1:]) for line in lines})
        return found

    # ---- HTTP

    def get(self, path, **options):
        return requests.get(self.url + path, timeout=options.pop("timeout", 10), **options)

    def chat(self, timeout=120, **fields):
        body = {"model": "tiny", "messages": PROMPT, "max_tokens": 16, "temperature": 0, **fields}
        return requests.post(self.url + "/v1/chat/completions", json=body, timeout=timeout)

    def workers(self):
        """{worker_id: status} as the router sees them."""
        return {w["worker_id"]: w["status"] for w in self.get("/v1/workers").json()["workers"]}

    def serves(self):
        try:
            return self.chat(timeout=30, max_tokens=2).status_code == 200
        except requests.RequestException:
            return False

    def metric(self, name):
        """{label text: value} of one metric of the router."""
        found = (re.fullmatch(rf"{re.escape(name)}(\{{.*\}})? (\S+)", line) for line in self.get("/metrics").text.splitlines())
        return {match[1] or "": float(match[2]) for match in found if match}


def recap(output):
    """{host: {ok, changed, failed, ...}} of a play."""
    return {match[1]: {key: int(value) for key, value in re.findall(r"(\w+)=(\d+)", match[2])}
            for match in re.finditer(r"^(\S+)\s+: (ok=\d+ .*)$", output, re.M)}


def changed(output):
    hosts = recap(output)
    assert hosts, "no recap in the output"
    return {host: counts["changed"] for host, counts in hosts.items() if counts["changed"]}

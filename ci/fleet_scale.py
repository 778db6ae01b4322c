#!/usr/bin/env python3
"""Time the control plane: `site.yml` up, again (no-op) and a change of the weight, for 2, 8 and 32 hosts.

usage: ci/fleet_scale.py [--hosts 2,8,32] [--keep]

What stands for what: the hosts are addresses of ONE container (systemd, sshd, one Docker engine), reached over real ssh with sudo, so that every host
runs every module; etcd and the router are the real ones; the engines are STAND-INS that answer /health at once and serve nothing. The smoke is left
out, for they cannot answer it. So the figures hold what Ansible does, and none of what SGLang or the network takes; all modules share this machine's
cores, where a fleet has its own.
"""
import argparse
import json
import os
import pathlib
import re
import resource
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from fleet import lab  # noqa: E402

NAME, NET = "infera-scale", "172.30.79"
FOLDER = lab.FOLDER.parent / "fleet-scale"
STAND_IN = '''
import http.server, os, sys
words = sys.argv[1:]
if "infera-make-model" in words[0]:
    os.makedirs(words[words.index("--out") + 1], exist_ok=True)
    sys.exit(0)
words = words[words.index("--") + 1:]
class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()
    def log_message(self, *_):
        pass
http.server.ThreadingHTTPServer((words[words.index("--host") + 1], int(words[words.index("--port") + 1])), Health).serve_forever()
'''


def quiet(*argv, limit=900, stdin=None):
    done = subprocess.run(argv, cwd=ROOT, input=stdin, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=limit)
    if done.returncode:
        sys.exit(f"{' '.join(argv)}: exit {done.returncode}\n{done.stdout[-4000:]}")
    return done.stdout


def address(number):
    return f"{NET}.{100 + number}"


def up(count):
    """The container with *count* addresses, and the images in it."""
    refs = images()
    down()
    FOLDER.mkdir(parents=True, exist_ok=True)
    quiet("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(FOLDER / "key"))
    quiet("docker", "network", "create", "--subnet", f"{NET}.0/24", NAME)
    quiet("docker", "run", "--detach", "--name", NAME, "--network", NAME, "--ip", f"{NET}.10", *lab.HOST_OPTIONS,
          "--volume", f"{NAME}-docker:/var/lib/docker", "--volume", f"{NAME}-containerd:/var/lib/containerd", lab.host_image())
    inside("until systemctl is-system-running --wait | grep -Eq 'running|degraded'; do sleep 0.2; done")
    home = f"/home/{lab.USER}/.ssh"
    inside(f"install -d -o {lab.USER} -m 0700 {home} && cat >{home}/authorized_keys", stdin=(FOLDER / "key.pub").read_text())
    inside("printf 'MaxStartups 500\\nMaxSessions 500\\nUseDNS no\\n' >/etc/ssh/sshd_config.d/scale.conf && systemctl restart ssh && systemctl start docker")
    inside("\n".join(f"ip address add {address(number)}/24 dev eth0" for number in range(count)))
    key = inside("cat /etc/ssh/ssh_host_ed25519_key.pub").split()[:2]
    (FOLDER / "known_hosts").write_text("".join(f"{address(number)} {' '.join(key)}\n" for number in range(count)))
    base = quiet("docker", "image", "ls", "--format", "{{.Repository}}:{{.Tag}}", "infera/base").split()[0]
    quiet("sh", "-c", f"docker save {base} {refs['router']} {refs['etcd']} | docker exec -i {NAME} docker load -q")
    inside("mkdir /stand-in && cat >/stand-in/stand_in.py", stdin=STAND_IN)
    inside("cat >/stand-in/Dockerfile", stdin=f'FROM {base}\nCOPY stand_in.py /\nENTRYPOINT ["python3", "/stand_in.py"]\n')
    inside(f"docker build -q -t {refs['sglang']} /stand-in")


def inside(script, stdin=None):
    return quiet("docker", "exec", "-i", NAME, "sh", "-ec", script, stdin=stdin)


def images():
    """The names that the collection gives its images now; etcd's and the router's are built where they are missing."""
    play = (".venv/bin/ansible-playbook", "playbooks/image.yml", "-i", "inventories/local", "-e", "image_etcd_source=debian")
    quiet(*play, "-e", '{"image_names": ["router", "etcd"]}', limit=1800)
    found = {match[1]: match[0] for match in re.findall(r"(infera/(sglang|router|etcd):[\w.-]+)", quiet(*play, "--check"))}
    return found


def down():
    subprocess.run(["docker", "rm", "--force", NAME], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    subprocess.run(["docker", "volume", "rm", "--force", f"{NAME}-docker", f"{NAME}-containerd"], stdout=subprocess.DEVNULL)
    subprocess.run(["docker", "network", "rm", NAME], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    shutil.rmtree(FOLDER, ignore_errors=True)


def inventory(count):
    """Half prefills, half decodes, one engine a host; the first host has the router, the first one or three have etcd."""
    hosts = {f"host-{number:02d}": {"ansible_host": address(number)} for number in range(count)}
    names = list(hosts)
    groups = {"prefill": names[:count // 2], "decode": names[count // 2:], "mixed": [], "router": names[:1], "builder": names[:1],
              "etcd": names[:3 if count >= 3 else 1]}
    values = {
        "ansible_user": lab.USER, "ansible_ssh_private_key_file": str(FOLDER / "key"), "ansible_python_interpreter": "/usr/bin/python3", "ansible_timeout": 60,
        "ansible_ssh_common_args": f"-o UserKnownHostsFile={FOLDER / 'known_hosts'} -o IdentitiesOnly=yes",
        "infera_shape": "scale", "infera_deployment_id": f"scale{count}", "infera_flavour": "cpu", "infera_runs_dir": str(FOLDER / "runs"),
        "infera_model_make": {"vocab": 512, "context": 2048, "layers": 2}, "prefill_workers": count // 2, "prefill_gpus": 1,
        "decode_workers": count - count // 2, "decode_gpus": 1, "router_policy": "round-robin", "router_tokenizer_path": "none",
        "decode_input_demand": "on", "decode_request_weight": "{{ DECODE_REQUEST_WEIGHT | default(0) }}", "image_etcd_source": "debian",
        "container_engine_manage": False, "preflight_min_memory_gb": 1, "preflight_min_disk_gb": 1, "site_smoke": False,
        "router_drain_timeout": 5, "engine_drain_timeout": 5}
    path = FOLDER / f"{count}.yml"
    children = {"mi355x": {"hosts": hosts}, **{name: {"hosts": dict.fromkeys(members)} for name, members in groups.items()}}
    path.write_text(json.dumps({"all": {"vars": values, "children": children}}, indent=1))
    return path


def timed(path, playbook, *argv):
    """Run a playbook; return (seconds, controller's and modules' CPU seconds of this machine, changed, the three slowest tasks)."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    env = {**os.environ, "ANSIBLE_CALLBACKS_ENABLED": "ansible.posix.profile_tasks", "PROFILE_TASKS_TASK_OUTPUT_LIMIT": "3"}
    done = subprocess.run([".venv/bin/ansible-playbook", playbook, "-i", str(path), "-l", "mi355x", *argv], cwd=ROOT, env=env, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=3600)
    seconds, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(f"{playbook} with {path.name} failed:\n{done.stdout[-6000:]}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    slow = re.findall(r"^(.{3,80}?) -+ ([\d.]+)s$", done.stdout, re.M)[-3:]
    return seconds, cpu, sum(map(int, re.findall(r"changed=(\d+)", done.stdout))), "; ".join(f"{name.split(' : ')[-1]} {took} s" for name, took in slow)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hosts", default="2,8,32", help="numbers of hosts, comma-separated")
    parser.add_argument("--keep", action="store_true", help="leave the container for a look")
    args = parser.parse_args()
    counts = [int(word) for word in args.hosts.split(",")]
    if not all(2 <= count <= 100 for count in counts):
        parser.error(f"--hosts {args.hosts!r}: give numbers from 2 to 100")
    print(__doc__.split("\n\n")[2])
    try:
        up(max(counts))
        print(f"{'hosts':>5}  {'what':<7} {'seconds':>7} {'controller CPU s':>16} {'changed':>7}  slowest tasks", flush=True)
        for count in counts:
            path = inventory(count)
            for what, *command in (("up", "site.yml"), ("no-op", "site.yml"), ("weight", "playbooks/weight.yml", "-e", "DECODE_REQUEST_WEIGHT=1000")):
                seconds, cpu, changed, slow = timed(path, *command)
                print(f"{count:>5}  {what:<7} {seconds:7.1f} {cpu:16.1f} {changed:7d}  {slow}", flush=True)
                if what == "no-op" and changed:
                    sys.exit(f"the second run changed {changed} things")
            inside("docker ps -aq | xargs -r docker rm -f >/dev/null; docker volume prune -f >/dev/null; rm -rf /var/lib/infera")
    finally:
        if not args.keep:
            down()
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Three hosts as containers in a network of their own: systemd as PID 1, sshd, a Docker engine each. They stand for machines of a fleet.

The engine image is built once by this machine's Docker, and goes to the hosts through the registry on fleet-c, which is the build host.
Everything is found by its name or label: containers and volumes ``infera-fleet-*``, the network ``infera-fleet``.
"""
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = pathlib.Path(__file__).resolve().parent
FOLDER = pathlib.Path(os.environ.get("INFERA_TEST_CACHE", ROOT / ".cache")) / "fleet"
NAME = "infera-fleet"
SUBNET = "172.30.78.0/24"
HOSTS = {"fleet-a": "172.30.78.11", "fleet-b": "172.30.78.12", "fleet-c": "172.30.78.13"}
BUILDER = "fleet-c"
REGISTRY = f"{HOSTS[BUILDER]}:5000"
USER = "deployer"
NEEDED_GB = 25
# All but CAP_SYS_RESOURCE, which a virtual machine may lack, so that --privileged could not start.
HOST_OPTIONS = ("--cap-add", "ALL", "--cap-drop", "SYS_RESOURCE", "--security-opt", "seccomp=unconfined", "--device-cgroup-rule", "a *:* rwm",
                "--cgroupns", "private", "--tmpfs", "/run:exec", "--tmpfs", "/run/lock", "--tmpfs", "/tmp:exec")


def sh(*argv, limit=600, check=True, stdin=None):
    """Run a command; return (exit status, output with stderr). The output is printed, too."""
    started = time.monotonic()
    done = subprocess.run(argv, cwd=ROOT, input=stdin, stdin=None if stdin is not None else subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=limit)
    print(f"$ {' '.join(argv)}\n{done.stdout}exit {done.returncode}, {time.monotonic() - started:.1f} s", flush=True)
    assert not check or done.returncode == 0, f"{' '.join(argv)}: exit {done.returncode}\n{done.stdout[-6000:]}"
    return done.returncode, done.stdout


def docker(*argv, **options):
    return sh("docker", *argv, **options)[1]


def container(host):
    return f"{NAME}-{host[-1]}"


def on(host, *argv, **options):
    """Run a command on a host as root."""
    return docker("exec", container(host), *argv, **options)


def exists():
    return sh("docker", "inspect", *map(container, HOSTS), check=False)[0] == 0


def up():
    """Make the hosts, with Docker running on the build host only. Raises AssertionError that says what is missing."""
    free = shutil.disk_usage("/var/lib").free / 1e9
    assert free >= NEEDED_GB, f"{free:.0f} GB free under /var/lib, {NEEDED_GB} are needed: free some disk"
    refs = local_images()  # starts this machine's Docker, too
    down()
    FOLDER.mkdir(parents=True, exist_ok=True)
    image = host_image()
    docker("network", "create", "--subnet", SUBNET, "--label", NAME, NAME)
    for host in HOSTS:
        create(host, image)
    for host in HOSTS:
        ready(host)
    bring_images(refs)
    write_known_hosts()


def create(host, image=None):
    """A fresh host, booting."""
    name, others = container(host), [word for other, address in HOSTS.items() for word in ("--add-host", f"{other}:{address}")]
    docker("run", "--detach", "--name", name, "--hostname", host, "--label", NAME, "--network", NAME, "--ip", HOSTS[host], *others, *HOST_OPTIONS,
           "--volume", f"{name}-docker:/var/lib/docker", "--volume", f"{name}-containerd:/var/lib/containerd", image or host_image())


def ready(host):
    """Wait until the host has booted; let the deployer in."""
    wait(f"{host} has booted", 60, lambda: docker("exec", container(host), "systemctl", "is-system-running", "--wait", check=False).split("\n")[0]
         in ("running", "degraded"))
    key = FOLDER / "id_ed25519"
    if not key.exists():
        sh("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key))
    public = key.with_suffix(".pub").read_text()
    on(host, "install", "-d", "-o", USER, "-m", "0700", f"/home/{USER}/.ssh")
    write(host, f"/home/{USER}/.ssh/authorized_keys", public)
    write(host, "/etc/docker/daemon.json", json.dumps({"insecure-registries": [REGISTRY]}))


def write(host, path, text):
    docker("exec", "-i", container(host), "sh", "-c", f"cat >{path}", stdin=text)


def write_known_hosts():
    lines = [f"{address} {' '.join(on(host, 'cat', '/etc/ssh/ssh_host_ed25519_key.pub').split()[:2])}\n" for host, address in HOSTS.items()]
    (FOLDER / "known_hosts").write_text("".join(lines))


def local_images():
    """Names of the images on this machine, built if they are missing: {sglang, router, etcd: reference}."""
    _, out = sh(".venv/bin/ansible-playbook", "playbooks/image.yml", "-i", "inventories/local", "-l", "local",
                "-e", "image_etcd_source=debian", limit=1800)
    refs = {match[1]: match[0] for match in re.findall(r"(infera/(sglang|router|etcd):[\w.-]+)", out)}
    assert set(refs) == {"sglang", "router", "etcd"}, f"the image play names {refs}"
    return refs


def host_image():
    """The hosts' image, upon molecule's; built when its files changed."""
    if not docker("image", "ls", "-q", "infera-test/host:bookworm").strip():
        sh("sh", "ci/host_image.sh", limit=900)
    below = docker("image", "ls", "-q", "infera-test/host:bookworm").strip()
    digest = hashlib.sha256(below.encode() + b"".join(path.read_bytes() for path in sorted((HERE / "host").iterdir()))).hexdigest()[:12]
    image = f"infera-fleet/host:{digest}"
    if not docker("image", "ls", "-q", image).strip():
        docker("build", "--tag", image, str(HERE / "host"), limit=900)
    return image


def bring_images(refs):
    """Put the images on the build host, under the registry's names, as if it had built them."""
    on(BUILDER, "systemctl", "start", "docker", "docker-registry")
    pipe = f"docker save {' '.join(refs.values())} | docker exec -i {container(BUILDER)} docker load -q"
    sh("sh", "-c", pipe, limit=900)
    for ref in refs.values():
        on(BUILDER, "docker", "tag", ref, f"{REGISTRY}/{ref}")
        on(BUILDER, "docker", "rmi", ref)


def down():
    """Remove whatever carries our names; fine when there is nothing."""
    hosts = docker("ps", "-aq", "--filter", f"label={NAME}").split()
    if hosts:
        docker("rm", "--force", *hosts)
    volumes = [f"{container(host)}-{use}" for host in HOSTS for use in ("docker", "containerd")]
    sh("docker", "volume", "rm", "--force", *volumes, check=False)
    sh("docker", "network", "rm", NAME, check=False)
    shutil.rmtree(FOLDER, ignore_errors=True)


def wait(what, seconds, probe, every=0.5):
    """Poll probe() until it is true; return (its value, the seconds it took)."""
    started = time.monotonic()
    while True:
        value = probe()
        took = time.monotonic() - started
        if value:
            return value, took
        assert took < seconds, f"{what}: not within {seconds} s"
        time.sleep(every)

# Copyright (c) 2026, the infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The role mooncake on two hosts with fake rails: before the start with real engines in a real image, after it with engines' logs."""
from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import tarfile
import zipfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
GLOG = "I1201 03:25:57.544255 14098 transfer_engine_impl.cpp:274] "
RDMA = [GLOG + "Topology discovery complete. Found 8 HCAs.", GLOG + "installTransport, type=rdma"]
TCP = [GLOG + "Topology discovery complete. Found 0 HCAs.", "I1201 03:25:57.544380 14098 tcp_transport.cpp:391] TcpTransport: listen on port 15507"]
DEVICES = "    device\t node GUID\n    ------\t----\n" + "".join("    ionic_%d\t 0690\n" % number for number in range(8))

PLAY = """
- hosts: prefill:decode
  gather_facts: false
  tasks:
    - ansible.builtin.import_tasks: {root}/playbooks/tasks/plan.yml
    - ansible.builtin.include_role: {{name: infera.serving.mooncake}}
    - infera.serving.plan:
        rails: "{{{{ dict(ansible_play_hosts_all | zip(ansible_play_hosts_all | map('extract', hostvars, 'infera_rails_info'))) }}}}"
      register: made
      run_once: true
    - ansible.builtin.set_fact: {{infera_plan: "{{{{ made.plan }}}}"}}
    - ansible.builtin.copy: {{dest: "{{{{ lab }}}}/plan.json", content: "{{{{ made.plan }}}}", mode: "0600"}}
      run_once: true
    - ansible.builtin.include_role: {{name: infera.serving.mooncake, tasks_from: verify.yml}}
      when: verify | default(false)
"""
# A fake docker command: engines' logs and ibv_devices, by the container's name. The role's image checks use the real one.
DOCKER = """#!/bin/sh
case "$1" in
  inspect) echo 2026-12-01T10:00:00.5Z ;;
  logs) cat "$LAB/$5.log" ;;
  exec) [ "$2" = own-decode-0 ] || cat "$LAB/devices" ;;
  *) echo "no such file" >&2; exit 1 ;;
esac
"""


@pytest.fixture
def lab(trees, tmp_path):
    """Two hosts; returns a way to run the play with further variables: ``(exit code, output)``."""
    hosts = {}
    for number, name in ((1, "a"), (2, "b")):
        trees.build("tree1", tmp_path / name, number)
        hosts[name] = {"infera_host_address": "10.9.0.%d" % number, "tree": str(tmp_path / name)}
    (tmp_path / "libionic.so.1").write_bytes(b"host")
    common = {
        "ansible_connection": "local", "ansible_python_interpreter": "/usr/bin/python3", "lab": str(tmp_path), "infera_shape": "own",
        "infera_model_path": "/models/glm", "prefill_workers": 1, "decode_workers": 1, "engine_max_running_requests": 64,
        "engine_libionic_file": str(tmp_path / "libionic.so.1"), "mooncake_sysfs_root": "{{ tree }}/sys", "mooncake_proc_root": "{{ tree }}/proc",
        "mooncake_dev_root": "{{ tree }}/dev", "mooncake_boot_root": "{{ tree }}/boot"}
    groups = {"prefill": {"hosts": {"a": None}}, "decode": {"hosts": {"b": None}}, "etcd": {"hosts": {"a": None}}, "router": {"hosts": {"a": None}}}
    (tmp_path / "hosts.yml").write_text(json.dumps({"all": {"vars": common, "hosts": hosts, "children": groups}}))
    (tmp_path / "play.yml").write_text(PLAY.format(root=ROOT))

    def run(path=None, **variables):
        env = dict(os.environ, LAB=str(tmp_path), ANSIBLE_CONFIG=str(ROOT / "ansible.cfg"), ANSIBLE_PIPELINING="true")
        if path:
            env["PATH"] = "%s:%s" % (path, env["PATH"])
        done = subprocess.run([str(pathlib.Path(os.sys.executable).parent / "ansible-playbook"), "-i", str(tmp_path / "hosts.yml"), str(tmp_path / "play.yml"),
                               "-e", json.dumps(variables)], env=env, cwd=ROOT, capture_output=True, text=True, timeout=300)
        return done.returncode, done.stdout + done.stderr

    run.folder = tmp_path
    return run


def stamped(lines):
    return "".join("2026-12-01T10:00:07.5Z %s\n" % line for line in lines)


def test_the_plan_gets_the_rails_and_a_fall_back_fails_the_deployment(lab):
    fake = lab.folder / "fake"
    fake.mkdir()
    (fake / "docker").write_text(DOCKER)
    (fake / "docker").chmod(0o755)
    (lab.folder / "devices").write_text(DEVICES)
    (lab.folder / "own-prefill-0.log").write_text(stamped(RDMA))
    (lab.folder / "own-decode-0.log").write_text(stamped(TCP))
    code, output = lab(fake, verify=True)
    text = " ".join(output.split())
    assert code != 0 and "rails: 2 faults on b; nothing was stopped" in text, output[-4000:]
    assert "own-decode-0: the engine runs over TCP, not RDMA (it fell back without an error)" in text
    assert "own-decode-0: libionic: libibverbs lists 0 of 8 rails inside the container" in text
    recap = dict(line.split(None, 1) for line in output.split("PLAY RECAP")[1].splitlines()[1:3])
    assert "failed=0" in recap["a"] and "failed=1" in recap["b"], "the healthy host passes"
    env = {container["name"]: container["env"] for container in json.loads((lab.folder / "plan.json").read_text())["containers"]}
    assert env["own-decode-0"]["MC_GID_INDEX"] == "1" and env["own-decode-0"]["SGLANG_HOST_IP"] == "10.100.0.2"
    assert "its Mooncake and libionic were not checked" in output


@pytest.fixture
def image(tmp_path):
    """Make an image of one engine and a libionic; returns its name. Needs Docker."""
    if shutil.which("docker") is None or subprocess.run(["docker", "info"], capture_output=True).returncode:
        pytest.skip("no Docker engine runs here yet; `make deploy` starts one")
    made = []

    def make(wheel, env=()):
        name = "infera-test/mooncake:%d" % len(made)
        with zipfile.ZipFile(wheel) as archive:
            engine = next(entry for entry in archive.namelist() if entry.startswith("mooncake/engine"))
            archive.extract(engine, tmp_path / "image")
        os.rename(tmp_path / "image" / engine, tmp_path / "image" / "engine.so")
        (tmp_path / "image" / "libionic.so.1").write_bytes(b"image")
        with tarfile.open(tmp_path / "image.tar", "w") as tar:
            for file in ("engine.so", "libionic.so.1"):
                tar.add(tmp_path / "image" / file, file)
        change = [word for text in ("CMD /none",) + tuple("ENV " + text for text in env) for word in ("--change", text)]
        subprocess.run(["docker", "import"] + change + [str(tmp_path / "image.tar"), name], check=True, capture_output=True, timeout=120)
        made.append(name)
        return name

    yield make
    for name in made:
        subprocess.run(["docker", "rmi", name], capture_output=True, timeout=60)


def test_the_engine_in_the_image_decides(lab, image, wheel):
    variables = {"mooncake_engine_path": "/engine.so", "mooncake_container_lib": "/libionic.so.1"}
    old = image(wheel("non_cuda", "0.3.12.post1"))
    code, output = lab(mooncake_image=old, **variables)
    text = " ".join(output.split())
    assert code != 0 and "mr_split is missing: a buffer above the limit is cut short" in text and "dmabuf is missing" in text, output[-3000:]
    good = image(wheel("rocm", "0.3.13.post1"), env=["MC_FORCE_TCP=0", "MC_GID_INDEX=3"])
    code, output = lab(mooncake_image=good, **variables)
    text = " ".join(output.split())
    assert code != 0 and "%s sets MC_FORCE_TCP, which own-decode-0 must not have, and Docker cannot unset it" % good in text, output[-3000:]

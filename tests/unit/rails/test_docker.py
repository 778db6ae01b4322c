# Copyright (c) 2026, the infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Modules that look into containers, against a fake docker command: it stands for rotated logs, dead containers and broken images.

The real Docker answers them in tests/e2e and in molecule.
"""
from __future__ import annotations

import io
import os
import stat
import tarfile

import pytest
from ansible_collections.infera.serving.plugins.module_utils import mooncake_log

START = "2026-12-01T10:00:00.123456789Z"
RDMA = ["transfer_engine_impl.cpp:274] Topology discovery complete. Found 8 HCAs.", "transfer_engine_impl.cpp:300] installTransport, type=rdma"]

# $FAKE/<subcommand> is what it prints; $FAKE/<subcommand>.err goes to stderr and makes it fail; every call is noted in $FAKE/calls.
DOCKER = """#!/bin/sh
echo "$*" >>"$FAKE/calls"
if [ -e "$FAKE/$1.err" ]; then cat "$FAKE/$1.err" >&2; exit 1; fi
if [ -e "$FAKE/$1.warn" ]; then cat "$FAKE/$1.warn" >&2; fi
cat "$FAKE/$1"
"""


@pytest.fixture
def docker(tmp_path, monkeypatch):
    folder = tmp_path / "fake-docker"
    folder.mkdir()
    (folder / "docker").write_text(DOCKER)
    (folder / "docker").chmod(stat.S_IRWXU)
    monkeypatch.setenv("FAKE", str(folder))
    monkeypatch.setenv("PATH", "%s:%s" % (folder, os.environ["PATH"]))

    def says(**answers):
        for name, answer in answers.items():
            (folder / name.replace("_", ".")).write_bytes(answer if isinstance(answer, bytes) else answer.encode())
        return folder

    return says


def stamped(lines, minute="00"):
    return "".join("2026-12-01T10:%s:07.5Z %s\n" % (minute, line) for line in lines)


def tar(files):
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return data.getvalue()


def test_a_containers_log_since_its_last_start(docker, run_module):
    folder = docker(inspect=START + "\n", logs=stamped(RDMA))
    found = run_module("mooncake_log_facts", container="decode-0", expect_transport="rdma", expect_rails=8)
    assert not found["failed"] and found["transport"] == "rdma" and found["complete"]
    assert "logs --timestamps --since %s decode-0" % START in (folder / "calls").read_text()


def test_a_rotated_log_is_no_fault_and_is_said(docker, run_module):
    docker(inspect=START + "\n", logs=stamped(["INFO decode batch"], "45"))
    found = run_module("mooncake_log_facts", container="decode-0", expect_transport="rdma")
    assert not found["failed"] and not found["complete"] and found["transport"] is None and "was rotated since the start" in found["warnings"][0]
    docker(logs=stamped(["INFO decode batch"]))
    fresh = run_module("mooncake_log_facts", container="decode-0", expect_transport="rdma")
    assert fresh["failed"] and mooncake_log.NO_TRANSPORT in fresh["msg"], "whole, and no transport in it"
    docker(logs=stamped(["Failed to register memory 0x7f"], "45"))
    assert "memory registration failed" in run_module("mooncake_log_facts", container="decode-0", expect_transport="rdma")["msg"]


def test_no_such_container(docker, run_module):
    docker(inspect_err="Error: No such container: decode-9\n")
    assert run_module("mooncake_log_facts", container="decode-9")["msg"] == "docker inspect decode-9: Error: No such container: decode-9"


def test_libibverbs_inside_a_container(docker, run_module, tree, tmp_path):
    library = tmp_path / "libionic.so.1"
    library.write_bytes(b"host")
    listed = "    device\t   node GUID\n    ------\t----\n" + "".join("    ionic_%d\t 0690\n" % number for number in range(8))
    arguments = {"sysfs_root": str(tree("tree1") / "sys"), "host_lib": str(library), "container": "decode-0", "strict": True}
    docker(exec=listed, cp=tar({"libionic.so.1": b"image"}))
    assert run_module("libionic_info", **arguments)["reasons"] == ["libibverbs lists all 8 rails inside the container"]
    docker(exec="", exec_warn="libibverbs: Warning: Driver ionic does not support the kernel ABI of 1 (supports 4 to 4) for device ionic_0\n")
    blind = run_module("libionic_info", **arguments)
    assert blind["failed"] and blind["action"] == "inject" and "libibverbs lists 0 of 8 rails inside the container" in blind["msg"]
    assert blind["msg"].endswith("mount the host's library: engine_libionic_file: %s" % library)
    assert not run_module("libionic_info", **dict(arguments, strict=False))["failed"]
    docker(cp=tar({"libionic.so.1": b"host"}))
    failed = run_module("libionic_info", **arguments)
    assert failed["failed"] and failed["msg"].startswith("decode-0: libionic: the container's library supports kernel ABI 4 to 4, the host's driver has 1; ")
    assert "the host's own library is already in the container" in failed["msg"]


def test_an_image_says_where_its_engine_is(docker, run_module):
    folder = docker(run="/x/mooncake/engine.so\n", create="0123\n", cp=tar({"engine.so": b"text"}), rm="")
    assert run_module("mooncake_engine_info", image="img")["msg"] == "no 64-bit little-endian ELF file"
    calls = (folder / "calls").read_text().splitlines()
    assert calls[0].startswith("run --rm --network none --entrypoint python3 img -c ") and calls[-1] == "rm --volumes 0123", "what was created is removed"
    docker(run="\n")
    assert run_module("mooncake_engine_info", image="img")["msg"] == "img: its Python finds 0 engines of a package mooncake (none); one is needed"
    docker(run="/x/engine.a.so\n/x/engine.b.so\n")
    assert "finds 2 engines" in run_module("mooncake_engine_info", image="img")["msg"]
    docker(run_err="docker: Error: no such image\n")
    assert run_module("mooncake_engine_info", image="img")["msg"] == "docker run: docker: Error: no such image"


def test_no_docker_at_all(run_module, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("ansible.module_utils.common.process.is_executable", lambda path: False)
    assert run_module("mooncake_engine_info", image="img")["msg"] == "the docker command is not on this host"

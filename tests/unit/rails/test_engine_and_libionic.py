# Copyright (c) 2026, the infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest
from ansible_collections.infera.serving.plugins.module_utils import ionic_lib, mooncake_elf, mooncake_engine

# A stand-in for a library's bytes; what counts here is text inside it. The real engines are read in tests/mooncake.
IONIC = b"...IBVERBS_PRIVATE_34..GLIBC_2.14..GLIBC_2.34..libionic"


def test_elf_reader_on_a_real_shared_object():
    found = sorted(Path(sysconfig.get_config_var("DESTSHARED") or "/usr/lib").glob("_ssl*.so"))
    library = found[0] if found else Path("/usr/bin/env")
    elf = mooncake_elf.read_elf(library.read_bytes())
    assert any(name.startswith("libc.so") for name in elf["needed"]) and any(len(name) > 3 for name in elf["undefined"])


@pytest.mark.parametrize("data", [b"", b"text", b"\x7fELF\x01\x01", b"\x7fELF\x02\x01" + b"\0" * 20])
def test_no_elf(data):
    with pytest.raises(mooncake_engine.EngineError):
        mooncake_engine.capabilities(data)


def test_missing_engine(run_module, tmp_path):
    assert "no mooncake/engine*.so in" in run_module("mooncake_engine_info", path=str(tmp_path))["msg"]
    assert "No such file" in run_module("mooncake_engine_info", path=str(tmp_path / "x.so"))["msg"]
    with pytest.raises(mooncake_engine.EngineError, match="require: fast is no capability"):
        mooncake_engine.missing({"truncates": False}, ["fast"])


@pytest.fixture
def libraries(tmp_path):
    def make(name, data=IONIC, folder="host"):
        path = tmp_path / folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
        return str(path)

    return make


RAILS = [{"vendor": "0x1dd8", "name": "ionic_%d" % number, "usable": True, "abi_version": 1} for number in range(2)]
OLD = "libibverbs: Warning: Driver ionic does not support the kernel ABI of 1 (supports 4 to 4) for device /sys/class/infiniband/ionic_0"


def test_libionic_decisions(libraries, tmp_path):
    host = ionic_lib.inspect(libraries("libionic.so.1"))
    same, other = ionic_lib.inspect(libraries("same.so")), ionic_lib.inspect(libraries("other.so", IONIC + b"54"))
    foreign = ionic_lib.inspect(libraries("foreign.so", IONIC.replace(b"_34", b"_59")))
    gone = ionic_lib.inspect(str(tmp_path / "gone.so"))
    folder = ionic_lib.inspect(str(tmp_path))
    assert (host["private_abi"], host["glibc"]) == (34, "2.34")

    def action(*arguments, **options):
        return ionic_lib.decide(*arguments, **options)[0]

    assert ionic_lib.decide([{"vendor": "0x15b3"}], host, other)[0] == "not_ionic"
    assert action(RAILS, host, same) == "ok"
    assert action(RAILS, host, other) == "inject"
    assert action(RAILS, host, other, ["ionic_0", "ionic_1"]) == "ok"
    assert action(RAILS, gone, None, ["ionic_0", "ionic_1"]) == "ok"
    inject = ionic_lib.decide(RAILS, host, other, [], OLD)
    assert inject[0] == "inject" and inject[1] == [
        "the container's library supports kernel ABI 4 to 4, the host's driver has 1", "libibverbs lists 0 of 2 rails inside the container"]
    broken = ionic_lib.decide(RAILS, host, same, [], OLD)
    assert broken[0] == "mismatch" and "do not fit each other" in broken[1][-1]
    assert ionic_lib.decide(RAILS, host, foreign)[1] == ["the host's library is for rdmav34, the container's libibverbs for rdmav59"]
    assert ionic_lib.decide(RAILS, host, other, container_glibc="2.31")[1] == ["the host's library needs glibc 2.34, the container has 2.31"]
    assert action(RAILS, host, other, container_glibc="2.36") == "inject"
    assert action(RAILS, gone, other, [], OLD) == "mismatch" and "does not exist on the host" in ionic_lib.decide(RAILS, gone, None)[1][0]
    assert "Docker makes one for a bind mount whose source is missing" in ionic_lib.decide(RAILS, folder, other)[1][0]


def test_libionic_module(run_module, tree, libraries):
    arguments = {"sysfs_root": str(tree("tree1") / "sys"), "host_lib": libraries("libionic.so.1")}
    result = run_module("libionic_info", container_lib=libraries("libionic.so.1", IONIC + b"old", "image"), **arguments)
    assert (result["action"], result["kernel_abi"], result["changed"]) == ("inject", [1], False) and result["host"]["sha256"] != result["container"]["sha256"]
    partial = run_module("libionic_info", container_lib=libraries("libionic.so.1"), container_devices=["ionic_0"], **arguments)
    assert partial["action"] == "mismatch" and partial["reasons"][0] == "libibverbs lists 1 of 8 rails inside the container"
    assert run_module("libionic_info", sysfs_root=str(tree("tree8") / "sys"))["action"] == "not_ionic"

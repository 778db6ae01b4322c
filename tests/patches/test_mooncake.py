"""The Mooncake build: its gates on PyPI's wheels and on small source trees, the yalantinglibs step, the stages. The compile itself needs ROCm: not run."""
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from patches import sources

MOONCAKE = sources.ROOT / "images" / "sglang" / "mooncake"
PIN = "faae8dd4a6309c3ecd47e0721a83b0250d686fa2"
# What each wheel's engine has, typed by hand.
ALL = ("large-region splitting", "dma-buf", "HIP", "locality routing")
WHEELS = {
    ("mooncake-transfer-engine-non-cuda", "0.3.12.post1"): (),
    ("mooncake-transfer-engine-non-cuda", "0.3.13.post1"): ("large-region splitting",),
    ("mooncake-transfer-engine-rocm", "0.3.13.post1"): ("large-region splitting", "dma-buf", "HIP"),
}


def call(*argv, **env):
    return subprocess.run([str(one) for one in argv], capture_output=True, text=True, env={**os.environ, **env}, timeout=120)


def gates(kind, path):
    """(exit status, {gate: line})"""
    done = call(sys.executable, MOONCAKE / "gates.py", kind, path)
    lines = [line.split(", ", 1)[1] for line in done.stdout.splitlines()]
    return done.returncode, {line.split(":")[0]: line.split(": ", 1)[1] for line in lines}


@pytest.mark.parametrize(("wheel", "has"), WHEELS.items(), ids=lambda value: "-".join(value) if isinstance(value, tuple) else "")
def test_binary_gates_on_the_wheels(wheel, has):
    code, lines = gates("binary", sources.wheel(*wheel))
    assert code == 1 and set(lines) == set(ALL)
    assert {name for name, line in lines.items() if line == "ok"} == set(has)
    for name in set(ALL) - set(has):
        assert lines[name].startswith("MISSING: ") and len(lines[name]) > 40, "a gate names the consequence"


@pytest.mark.parametrize("wheel", WHEELS, ids="-".join)
def test_binary_gates_say_what_the_module_says(wheel):
    """infera.serving.mooncake_engine_info, which judges a built image, reads the same from the same bytes."""
    from ansible_collections.infera.serving.plugins.module_utils.mooncake_engine import capabilities, read_engine
    found = capabilities(read_engine(str(sources.wheel(*wheel)))[0])
    said = {"large-region splitting": found["mr_split"] is True, "dma-buf": found["dmabuf"], "HIP": found["hip"], "locality routing": found["routing"]}
    assert {name for name, there in said.items() if there} == set(WHEELS[wheel])


def engine(tmp_path, text):
    path = tmp_path / "engine.cpython-3x-any.so"
    path.write_bytes(b"\x7fELF" + text)
    return path


COMPLETE = b"Auto-splitting buffer\0ibv_reg_dmabuf_mr\0libamdhip64.so.7\0MC_DISABLE_HIP\0"


def test_binary_gates_pass_a_complete_engine_and_no_near_miss(tmp_path):
    assert gates("binary", engine(tmp_path, COMPLETE))[0] == 0
    code, lines = gates("binary", engine(tmp_path, COMPLETE.replace(b"MC_DISABLE_HIP\0", b"MC_DISABLE_HIP_TRANSPORT\0")))
    assert code == 1 and lines["locality routing"].startswith("MISSING"), "another variable's name is not the one"
    plain = tmp_path / "engine.so"
    plain.write_text("Auto-splitting buffer")
    assert "not an ELF file" in call(sys.executable, MOONCAKE / "gates.py", "binary", plain).stderr
    assert call(sys.executable, MOONCAKE / "gates.py", "binary", tmp_path / "none.so").returncode == 2


TREE = {
    "mooncake-transfer-engine/src/CMakeLists.txt": "target_compile_definitions(rdma_transport PRIVATE USE_HIP_DMABUF)\n",
    "mooncake-transfer-engine/src/multi_transport.cpp": "if (!isHipReachableTarget(target, local)) continue;\n",
    "mooncake-transfer-engine/src/transport/rdma_transport/rdma_transport.cpp": "size_t chunk_limit = 1;\nchunk_dmabuf_exp.offset += chunk_offset;\n",
    "extern/yalantinglibs/CMakeLists.txt": "project(yalantinglibs)\n",
}


def checkout(root, without=None):
    for name, text in TREE.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace(without, "") if without else text)
    return root


@pytest.mark.parametrize(("without", "gate"), [
    (None, None), ("USE_HIP_DMABUF", "dma-buf wiring"), ("isHipReachableTarget", "locality routing"), ("chunk_limit", "large-region splitting"),
    ("chunk_dmabuf_exp.offset", "dma-buf offset of each chunk"), ("project(yalantinglibs)", "yalantinglibs submodule")])
def test_source_gates(without, gate, tmp_path):
    code, lines = gates("source", checkout(tmp_path, without))
    assert (code, {name for name, line in lines.items() if line != "ok"}) == ((0, set()) if gate is None else (1, {gate}))
    assert call("bash", MOONCAKE / "build.sh", "gates", tmp_path).returncode == code


def test_routing_gate_takes_the_newer_name(tmp_path):
    checkout(tmp_path)
    path = tmp_path / "mooncake-transfer-engine/src/multi_transport.cpp"
    path.write_text(path.read_text().replace("isHipReachableTarget", "isGpuIpcReachableTarget"))
    assert gates("source", tmp_path)[0] == 0


def test_yalantinglibs_is_installed_from_the_submodule(tmp_path):
    """A small tree with the submodule's shape; a consumer finds the package in the prefix afterwards, and not before."""
    missing = [tool for tool in ("cmake", "ninja") if shutil.which(tool) is None]
    assert not missing, f"{' and '.join(missing)} not installed: apt-get install cmake ninja-build"
    submodule = tmp_path / "extern" / "yalantinglibs"
    submodule.mkdir(parents=True)
    (submodule / "CMakeLists.txt").write_text("""cmake_minimum_required(VERSION 3.16)
project(yalantinglibs VERSION 0.5.7 LANGUAGES NONE)
option(BUILD_EXAMPLES "" ON)
option(BUILD_BENCHMARK "" ON)
option(BUILD_UNIT_TESTS "" ON)
if(BUILD_EXAMPLES OR BUILD_BENCHMARK OR BUILD_UNIT_TESTS)
  message(FATAL_ERROR "examples, benchmarks and tests are to be off")
endif()
add_library(yalantinglibs INTERFACE)
install(TARGETS yalantinglibs EXPORT yalantinglibsTargets)
install(EXPORT yalantinglibsTargets NAMESPACE yalantinglibs:: FILE yalantinglibsConfig.cmake DESTINATION lib/cmake/yalantinglibs)
""")
    consumer = tmp_path / "consumer"
    consumer.mkdir()
    (consumer / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.16)\nproject(consumer LANGUAGES NONE)\nfind_package(yalantinglibs CONFIG REQUIRED)\n")
    prefix = tmp_path / "prefix"
    find = ("cmake", "-S", consumer, "-B", consumer / "build", "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}")
    assert call(*find).returncode != 0
    done = call("bash", MOONCAKE / "build.sh", "yalantinglibs", tmp_path, prefix)
    assert done.returncode == 0, done.stderr
    assert call(*find).returncode == 0


def test_build_says_what_is_missing(tmp_path):
    script = MOONCAKE / "build.sh"
    assert PIN in script.read_text() and script.read_text().count(PIN) == 1, "one variable holds the pin"
    short = call("bash", script, "fetch", tmp_path / "x", MOONCAKE_REF="main")
    assert short.returncode == 1 and "MOONCAKE_REF 'main': must be a full commit of 40 hex digits" in short.stderr
    assert "the submodule was not fetched" in call("bash", script, "yalantinglibs", tmp_path, tmp_path).stderr
    rocm = call("bash", script, "compile", tmp_path, tmp_path, ROCM_PATH=str(tmp_path / "rocm"))
    assert rocm.returncode == 1 and "this step needs ROCm (ROCM_PATH)" in rocm.stderr
    usage = call("bash", script)
    assert usage.returncode == 2 and "usage: build.sh all WORK OUT" in usage.stderr


def test_fetch_checks_the_pin_out_with_its_submodules(tmp_path):
    """A local repository with a submodule: the commit asked for, not the branch's head."""
    git = {"GIT_CONFIG_GLOBAL": str(tmp_path / "gitconfig"), "GIT_CONFIG_NOSYSTEM": "1"}
    (tmp_path / "gitconfig").write_text("[user]\nname = t\nemail = t@example.invalid\n[protocol \"file\"]\nallow = always\n[uploadpack]\n"
                                        "allowFilter = true\nallowAnySHA1InWant = true\n")

    def run(*argv, where):
        done = call("git", "-C", where, *argv, **git)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    for name in ("library", "origin"):
        (tmp_path / name).mkdir()
        run("init", "-q", where=tmp_path / name)
        (tmp_path / name / "file").write_text("one")
        run("add", ".", where=tmp_path / name)
        run("commit", "-q", "-m", "one", where=tmp_path / name)
    run("submodule", "--quiet", "add", (tmp_path / "library").as_uri(), "extern/yalantinglibs", where=tmp_path / "origin")
    run("commit", "-q", "-m", "pin", where=tmp_path / "origin")
    pin = run("rev-parse", "HEAD", where=tmp_path / "origin")
    run("commit", "-q", "--allow-empty", "-m", "later", where=tmp_path / "origin")
    done = call("bash", MOONCAKE / "build.sh", "fetch", tmp_path / "work", MOONCAKE_REPO=(tmp_path / "origin").as_uri(), MOONCAKE_REF=pin, **git)
    assert done.returncode == 0, done.stderr
    assert run("rev-parse", "HEAD", where=tmp_path / "work") == pin
    assert (tmp_path / "work/extern/yalantinglibs/file").read_text() == "one"


def test_collect_asks_the_interpreter_for_its_tag(tmp_path):
    import sysconfig
    build = tmp_path / "build" / "mooncake-integration"
    build.mkdir(parents=True)
    path = f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"
    none = call("bash", MOONCAKE / "build.sh", "collect", tmp_path, tmp_path / "out", PATH=path)
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    assert none.returncode == 1 and f"expected one engine{suffix}" in none.stderr
    (build / f"engine{suffix}").write_bytes(b"\x7fELF" + COMPLETE)
    (build / "libasio.so").write_bytes(b"\x7fELF")
    assert call("bash", MOONCAKE / "build.sh", "collect", tmp_path, tmp_path / "out", PATH=path).returncode == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted([f"engine{suffix}", "libasio.so"])
    (build / f"engine{suffix}").write_bytes(b"\x7fELF" + COMPLETE.replace(b"ibv_reg_dmabuf_mr", b"ibv_reg_mr"))
    refused = call("bash", MOONCAKE / "build.sh", "collect", tmp_path, tmp_path / "again", PATH=path)
    assert refused.returncode == 1 and not (tmp_path / "again").exists()


def stage(tmp_path, *wheels, stage="prebuilt", **env):
    folder = tmp_path / "mooncake"
    folder.mkdir(exist_ok=True)
    for script in MOONCAKE.iterdir():
        if script.is_file():
            shutil.copy(script, folder)
    for wheel in wheels:
        os.link(wheel, folder / wheel.name) if wheel.stat().st_dev == folder.stat().st_dev else shutil.copy(wheel, folder)
    return call("sh", folder / "stage.sh", stage, tmp_path / "out", **env)


def test_prebuilt_is_refused_without_routing_unless_told_otherwise(tmp_path):
    wheel = sources.wheel("mooncake-transfer-engine-rocm", "0.3.13.post1")
    refused = stage(tmp_path, wheel)
    assert refused.returncode == 1 and not (tmp_path / "out" / "label").exists()
    assert "locality routing: MISSING" in refused.stdout and "image_allow_unverified_mooncake: true" in refused.stderr
    told = stage(tmp_path, MOONCAKE_ALLOW_UNVERIFIED="yes")
    assert told.returncode == 0 and (tmp_path / "out" / "label").read_text().strip() == "unverified"
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"label", "install.sh", wheel.name}


def test_stage_refuses_what_it_does_not_know(tmp_path):
    assert "needs one Mooncake wheel beside this script (image_mooncake_prebuilt), found 0" in stage(tmp_path).stderr
    assert "MOONCAKE_STAGE 'wheel': must be build or prebuilt" in stage(tmp_path, stage="wheel").stderr


def test_prebuilt_replaces_the_engine_that_is_installed(tmp_path):
    """install.sh in a fresh virtual environment: the ROCm wheel takes the place of the non-CUDA one, whose folder it shares."""
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    path = f"{tmp_path / 'venv' / 'bin'}:{os.environ['PATH']}"
    before = sources.wheel("mooncake-transfer-engine-non-cuda", "0.3.13.post1")
    assert call("python3", "-m", "pip", "-q", "install", "--no-index", "--no-deps", before, PATH=path).returncode == 0
    assert stage(tmp_path, sources.wheel("mooncake-transfer-engine-rocm", "0.3.13.post1"), MOONCAKE_ALLOW_UNVERIFIED="yes").returncode == 0
    done = call("sh", tmp_path / "out" / "install.sh", PATH=path)
    assert done.returncode == 0, done.stderr
    engines = list((tmp_path / "venv").rglob("mooncake/engine*.so"))
    assert len(engines) == 1 and gates("binary", engines[0])[1]["dma-buf"] == "ok"
    names = {info.name.split("-")[0] for info in (tmp_path / "venv").rglob("*mooncake*.dist-info")}
    assert names == {"mooncake_transfer_engine_rocm"}


def test_shell_is_clean():
    scripts = sorted(MOONCAKE.glob("*.sh"))
    assert len(scripts) == 3
    assert shutil.which("shellcheck"), "shellcheck is not installed: apt-get install shellcheck"
    done = call("shellcheck", *scripts)
    assert done.returncode == 0, done.stdout

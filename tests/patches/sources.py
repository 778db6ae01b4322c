"""SGLang's and Mooncake's wheels as test data: downloaded with pip once, checked, unpacked read-only into the test cache."""
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
CACHE = pathlib.Path(os.environ.get("INFERA_TEST_CACHE", ROOT / ".cache"))
# sha256 of the wheels for CPython 3.11 on Linux x86-64
WHEELS = {
    ("mooncake-transfer-engine-non-cuda", "0.3.12.post1"): "691b4df2a74e32fd9b1877317097d26fd8c5f48692fba920caf5e3a518f36911",
    ("mooncake-transfer-engine-non-cuda", "0.3.13.post1"): "ca9f668a04ffe648b250fda28b97d0a7da149cb110dec5cf3d166a9e68afc940",
    ("mooncake-transfer-engine-rocm", "0.3.13.post1"): "2ea80c901c7ef088306349560059f542877b6b74e34693cb498acd7f8891a410",
    # what 0.5.23 imports beside the 0.5.22 environment
    ("openai", "2.8.0"): "ba975e347f6add2fe13529ccb94d54a578280e960765e5224c34b08d7e029ddf",
    ("sglang", "0.5.18"): "e97b585dd2d5db2802599feba47c84cce972f5e1231a6816fef996200207b5cf",
    ("sglang", "0.5.22"): "cc9a0f15bd8f877a0584fdb7a1702240177a1f1cc8d17c978715161717b9037b",
    ("sglang", "0.5.23"): "00b3cd5b265ac76c64185fbb6b95424f324ddd9f428d0306b77bc9db9d859937",
}


def wheel(project, version):
    """Path of the wheel file in the cache."""
    folder = CACHE / "wheels"
    folder.mkdir(parents=True, exist_ok=True)
    pattern = f"{project.replace('-', '_')}-{version}-*.whl"
    found = next(folder.glob(pattern), None)
    if found is None:
        with tempfile.TemporaryDirectory(dir=folder) as tmp:
            subprocess.run(
                [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--disable-pip-version-check", "--dest", tmp, "--only-binary=:all:",
                 "--python-version", "3.11", "--implementation", "cp", "--abi", "cp311", "--platform", "manylinux_2_34_x86_64",
                 "--platform", "manylinux_2_35_x86_64", "--platform", "manylinux_2_28_x86_64", "--platform", "manylinux2014_x86_64",
                 f"{project}=={version}"], check=True)
            fresh = next(pathlib.Path(tmp).glob(pattern))
            found = folder / fresh.name
            os.replace(fresh, found)
    digest = hashlib.sha256(found.read_bytes()).hexdigest()
    wanted = WHEELS[project, version]
    assert digest == wanted, f"{found.name} has sha256 {digest}, expected {wanted}; delete it and look where it came from"
    return found


def unpacked(project, version):
    """Folder with the wheel's contents: a site-packages folder. Its files are read-only."""
    target = CACHE / "unpacked" / f"{project}-{version}"
    if not target.exists():
        archive = wheel(project, version)
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh = pathlib.Path(tempfile.mkdtemp(dir=target.parent))
        with zipfile.ZipFile(archive) as opened:
            opened.extractall(fresh)
        for path in fresh.rglob("*"):
            if path.is_file():
                path.chmod(0o444)
        fresh.chmod(0o755)
        try:
            fresh.rename(target)
        except OSError:
            shutil.rmtree(fresh)
    return target


def copied(version, destination, files=None):
    """A writable copy of one SGLang, whose files other than Python are links to the cache; or only the given files below sglang/."""
    package = unpacked("sglang", version) / "sglang"
    chosen = files if files is not None else [path.relative_to(package).as_posix() for path in package.rglob("*") if path.is_file()]
    for name in chosen:
        target = pathlib.Path(destination) / "sglang" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".py"):
            shutil.copyfile(package / name, target)
        else:
            target.symlink_to(package / name)
    return pathlib.Path(destination)

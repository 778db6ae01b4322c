"""STATUS.md is what the manifest and a run of the applier on the wheels say, and says what it was not verified on."""
import json
import subprocess
import sys

from patches import sources
from patches.conftest import PATCHES


def status(*options):
    wheels = [f"--source={version}={sources.unpacked('sglang', version)}" for version in ("0.5.22", "0.5.23")]
    return subprocess.run([sys.executable, "-B", str(PATCHES / "status.py"), *wheels, *options], capture_output=True, text=True)


def test_the_page_is_current():
    done = status("--check")
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_outdated_page_is_found(tmp_path):
    import shutil
    copy = tmp_path / "patches"
    shutil.copytree(PATCHES, copy, ignore=shutil.ignore_patterns("__pycache__"))
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest["patches"][0]["subject"] += ", changed"
    (copy / "manifest.json").write_text(json.dumps(manifest))
    wheels = [f"--source={version}={sources.unpacked('sglang', version)}" for version in ("0.5.22", "0.5.23")]
    done = subprocess.run([sys.executable, "-B", str(copy / "status.py"), *wheels, "--check"], capture_output=True, text=True)
    assert done.returncode == 1 and "not current" in done.stdout


def test_every_row_and_what_was_not_available():
    text = (PATCHES / "STATUS.md").read_text()
    for row in json.loads((PATCHES / "manifest.json").read_text())["patches"]:
        assert f"| `{row['name']}` |" in text
    assert "not the image.** The ROCm image" in text and "was not available where this was written, and no GPU" in text
    assert "ansible-playbook infera.serving.verify_image" in text
    assert "**The compile was not run**" in text
    for older in ("draft CUDA graph DP vote", "HiCache ROCm host allocation", "Mooncake early-send wait event", "DSA page-table rows, shape rule"):
        assert f"| {older} |" in text

"""Docker and the image playbook, as the tests call them."""
import json
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
NAMESPACE = "infera-test-builds"


def docker(*argv, check=True):
    done = subprocess.run(["docker", *argv], capture_output=True, text=True, timeout=600)
    assert not check or done.returncode == 0, f"docker {' '.join(argv)}: {done.stderr}"
    return done.stdout.strip()


def play(tmp_path, **variables):
    """Run playbooks/image.yml under a namespace of the tests, by default for the engine image alone; returns the completed process."""
    values = {"image_namespace": NAMESPACE, "image_names": ["sglang"], "image_controller_cache_dir": str(tmp_path / "packed")}
    values.update(variables)
    return subprocess.run(
        [ROOT / ".venv/bin/ansible-playbook", "playbooks/image.yml", "-i", "inventories/local", "-t", "image", "-e", json.dumps(values)],
        cwd=ROOT, capture_output=True, text=True, timeout=1200)

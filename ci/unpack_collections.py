#!/usr/bin/env python3
"""Unpack the collections that infera.serving depends on from PyPI's `ansible` wheel.

No collection of these names is on PyPI by itself, and Ansible Galaxy may be out of reach;
the wheel carries them all. It is downloaded with pip (so the host's pip settings count),
checked against a pinned sha256 and unpacked into .deps/, which ansible.cfg searches.
With access to Galaxy, `ansible-galaxy collection install -r requirements.yml` does the same.
"""
import argparse
import hashlib
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile

VERSION = "12.3.0"
SHA256 = "cd156f82fa87f7a899212b0efa9f7ca3a24d609212de9f78428a572eb01e5414"
COLLECTIONS = ("community/docker", "community/library_inventory_filtering_v1", "ansible/posix", "ansible/utils")


def unpack(dest: pathlib.Path) -> bool:
    """Fill dest/ansible_collections; return False where the same wheel was unpacked before."""
    stamp = dest / f".ansible-{VERSION}-{SHA256[:16]}"
    if stamp.exists():
        return False
    with tempfile.TemporaryDirectory() as tmp:
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", tmp, f"ansible=={VERSION}"], check=True)
        wheel = next(pathlib.Path(tmp).glob("ansible-*.whl"))
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        if digest != SHA256:
            sys.exit(f"ci/unpack_collections.py: {wheel.name} has sha256 {digest}, expected {SHA256}; nothing was unpacked")
        shutil.rmtree(dest, ignore_errors=True)
        prefixes = tuple(f"ansible_collections/{name}/" for name in COLLECTIONS)
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(dest, [n for n in archive.namelist() if n.startswith(prefixes)])
    stamp.touch()
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dest", type=pathlib.Path, default=pathlib.Path(".deps"))
    args = parser.parse_args()
    state = "unpacked" if unpack(args.dest) else "already there"
    print(f"collections of ansible {VERSION} in {args.dest}: {state}")


if __name__ == "__main__":
    main()

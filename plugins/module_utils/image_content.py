# Copyright (c) 2026 The infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an image is made from, as one digest, and as one archive. The same tree gives the same digest on every machine."""
from __future__ import annotations

import fnmatch
import hashlib
import io
import json
import os
import tarfile

NEVER = ("__pycache__", "*.pyc", "*.egg-info", ".pytest_cache", ".ruff_cache", "build", "dist", "*.md")
DIGEST_LENGTH = 16  # hexadecimal digits in a tag: 64 bits


class ContentError(ValueError):
    """A path that is to be part of an image is missing."""


def files(root, paths, exclude=()):
    """Relative paths of all files below ``paths``, sorted; generated and excluded ones left out."""
    patterns = NEVER + tuple(exclude)
    found = set()
    for path in paths:
        top = os.path.join(root, path)
        if os.path.isfile(top):
            found.add(path)
        elif os.path.isdir(top):
            for folder, folders, names in os.walk(top):
                relative = os.path.relpath(folder, root)
                folders[:] = [name for name in folders if not _matches(os.path.join(relative, name), patterns)]
                found.update(os.path.join(relative, name) for name in names if not _matches(os.path.join(relative, name), patterns))
        else:
            raise ContentError("{0} is missing below {1}: the collection is not complete".format(path, root))
    return sorted(found)


def _matches(path, patterns):
    return any(fnmatch.fnmatch(os.path.basename(path), pattern) or fnmatch.fnmatch(path, pattern) for pattern in patterns)


def _mode(path):
    return 0o755 if os.stat(path).st_mode & 0o100 else 0o644


def read(root, names):
    """The files as a list of (name, mode, bytes): read once, so that digest and archive speak of the same tree."""
    found = []
    for name in names:
        path = os.path.join(root, name)
        with open(path, "rb") as handle:
            found.append((name, _mode(path), handle.read()))
    return found


def digest(items, values):
    """Hexadecimal digest over the files' names, executable bits and contents, and over ``values`` (any JSON)."""
    total = hashlib.sha256()
    for name, mode, data in items:
        total.update("{0} {1:o} {2}\n".format(name, mode, hashlib.sha256(data).hexdigest()).encode("utf-8"))
    total.update(json.dumps(values, sort_keys=True, separators=(",", ":")).encode("utf-8"))
    return total.hexdigest()[:DIGEST_LENGTH]


def archive(items, target):
    """Write the files as a tar without times and owners. Atomic; leaves an existing archive alone. Returns whether it wrote."""
    if os.path.exists(target):
        return False
    staged = "{0}.{1}".format(target, os.getpid())
    with tarfile.open(staged, "w") as tar:
        for name, mode, data in items:
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), mode
            tar.addfile(entry, io.BytesIO(data))
    os.rename(staged, target)
    return True

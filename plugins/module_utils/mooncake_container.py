# Copyright (c) 2026, the infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files out of containers and images, through the docker command; no running container is changed."""
from __future__ import annotations

import io
import os
import tarfile
import tempfile

# Prints the engines of the mooncake package, one a line, without importing it (an import needs the GPU's libraries).
FIND_ENGINES = ("import glob, importlib.util as u; s = u.find_spec('mooncake'); "
                "print('\\n'.join(p for d in (s.submodule_search_locations if s else ()) for p in sorted(glob.glob(d + '/engine*.so'))))")


class ContainerError(ValueError):
    """Docker or the container could not give what was asked for."""


def docker(module, *arguments, **options):
    """Run the docker command; returns its stdout (bytes with ``binary=True``). Raises ContainerError."""
    executable = module.get_bin_path("docker")
    if not executable:
        raise ContainerError("the docker command is not on this host")
    encoding = None if options.get("binary") else "utf-8"
    code, out, err = module.run_command([executable] + list(arguments), encoding=encoding)
    if code:
        text = err if isinstance(err, str) else err.decode("utf-8", "replace")
        raise ContainerError("docker %s: %s" % (arguments[0], text.strip() or "exit code %d" % code))
    return out


def copy_out(module, container, path):
    """Return the bytes of one regular file of a container, links followed. Raises ContainerError."""
    data = docker(module, "cp", "--follow-link", "%s:%s" % (container, path), "-", binary=True)
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        member = archive.next()
        handle = archive.extractfile(member) if member else None
        if handle is None:
            raise ContainerError("%s in %s is no regular file" % (path, container))
        return handle.read()


def copy_folder(module, container, path, pick):
    """Return ``{name: bytes}`` of the regular files directly in a container's folder whose name ``pick`` accepts."""
    data = docker(module, "cp", "%s:%s/." % (container, path), "-", binary=True)
    found = {}
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for member in archive:
            name = os.path.normpath(member.name)
            if member.isfile() and "/" not in name and pick(name):
                found[name] = archive.extractfile(member).read()
    return found


class Stopped:
    """A container made from an image to read files from, never started, removed at the end."""

    def __init__(self, module, image):
        self.module, self.image, self.name = module, image, None

    def __enter__(self):
        self.name = docker(self.module, "create", "--network", "none", self.image).strip()
        return self.name

    def __exit__(self, *_error):
        docker(self.module, "rm", "--volumes", self.name)


def scratch(data):
    """Put bytes into a temporary file; returns its path, which the caller removes."""
    handle, path = tempfile.mkstemp()
    with os.fdopen(handle, "wb") as stream:
        stream.write(data)
    return path

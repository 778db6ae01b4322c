# Copyright (c) 2026 The infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Pins, wheel names and pip's command line for a wheelhouse that is collected for another Python than the host's. Pure."""
from __future__ import annotations

import hashlib
import re

PIN = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)==([A-Za-z0-9.!+_-]+)$")
NOT_FOUND = re.compile(r"No matching distribution found for (\S+)")


class WheelError(ValueError):
    """A requirement that cannot be used; the text names the variable to set."""


def normalise(name):
    """A distribution's name in the form in which indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(lines):
    """``name==version`` lines -> list of (name, version), comments dropped. Anything that is not a pin is refused."""
    found = []
    for line in lines:
        text = line.split("#", 1)[0].strip()
        if not text:
            continue
        match = PIN.match(text)
        if not match:
            raise WheelError("requirement {0!r}: must be NAME==VERSION, so that every build gets the same wheels".format(text))
        found.append((normalise(match.group(1)), match.group(2)))
    return found


def check_local(pinned, wanted):
    """Refuse a pin whose local version label is not the wanted one, for example torch without ``+cpu``."""
    for name, version in pinned:
        label = wanted.get(name)
        if label and version.partition("+")[2] != label:
            raise WheelError("image_{0}_version {1!r} is not a +{2} build: set it to {3}+{2}".format(name, version, label, version.partition("+")[0]))


def digest(pinned, python_version, platforms):
    """Sixteen hexadecimal digits over what the wheelhouse must hold."""
    lines = sorted("{0}=={1}".format(name, version) for name, version in pinned) + [python_version] + sorted(platforms)
    return hashlib.sha256("\n".join(lines).encode("utf-8")).hexdigest()[:16]


def platforms(machine, glibc):
    """Platform tags that an image with this glibc (``2.36``) accepts, newest first, the old names included."""
    minor = int(glibc.split(".")[1])
    tags = ["manylinux_2_{0}_{1}".format(number, machine) for number in range(minor, 4, -1)]
    return tags + ["manylinux2014_" + machine, "manylinux2010_" + machine, "manylinux1_" + machine, "linux_" + machine]


def pip_arguments(requirements, dest, python_version, tags, find_links, extra_index_url):
    """Arguments of ``python -m pip`` that collect the wheels. pip's own settings on the host stay in force."""
    arguments = ["download", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:", "--implementation", "cp",
                 "--python-version", python_version, "--abi", "cp" + python_version.replace(".", ""), "--abi", "abi3", "--abi", "none",
                 "--dest", dest, "--requirement", requirements]
    for tag in tags:
        arguments += ["--platform", tag]
    for place in find_links:
        arguments += ["--find-links", place]
    for place in extra_index_url:
        arguments += ["--extra-index-url", place]
    return arguments


def explain(output, python_version):
    """One line from pip's output."""
    match = NOT_FOUND.search(output)
    if match:
        return ("pip on the build host finds no wheel of {0} for CPython {1}: set image_pip_find_links to a folder that holds it, "
                "or image_pip_extra_index_url to an index that has it".format(match.group(1), python_version))
    errors = [line for line in output.splitlines() if line.startswith("ERROR")]
    return "pip download failed: " + (errors or output.strip().splitlines() or ["no output"])[-1]


def missing(pinned, names):
    """Pins that none of the wheel files is."""
    present = set()
    for name in names:
        if name.endswith(".whl"):
            parts = name.split("-")
            present.add((normalise(parts[0]), parts[1]))
    return ["{0}=={1}".format(name, version) for name, version in pinned if (name, version) not in present]

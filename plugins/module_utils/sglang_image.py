# Copyright (c) 2026 The infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The applier in a container of an image, and the layer upon an image that has the patches; through the docker command."""
from __future__ import annotations

import json
import os
import shutil
import tempfile

from ansible_collections.infera.serving.plugins.module_utils.mooncake_container import ContainerError, docker

PLACE = "/usr/local/lib/infera/patches"
LABEL = "infera.serving.ledger"
PARENT = "infera.serving.patched_from"


def unpack(archive, member, folder):
    """One plain file of the applier's archive."""
    path = os.path.normpath(os.path.join(folder, member.name))
    if not member.isfile() or not path.startswith(folder + os.sep):
        raise OSError("the applier's archive holds %r, which is no plain file below it" % member.name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as out:
        shutil.copyfileobj(archive.extractfile(member), out)


def inspect(module, image):
    """What docker knows of an image, or None where the host has none of that name."""
    try:
        return json.loads(docker(module, "image", "inspect", image))[0]
    except ContainerError as error:
        if "no such image" in str(error).lower():
            return None
        raise


def identity(module, image):
    """Id of an image. Raises ContainerError where it is not on the host."""
    found = inspect(module, image)
    if found is None:
        raise ContainerError("image %s is not on this host: pull or load it first" % image)
    return found["Id"]


def run(module, image, python, applier, options):
    """Exit status, stdout and stderr of apply.py in a container of the image: no network, no GPU, removed afterwards."""
    identity(module, image)
    name = docker(module, "create", "--network", "none", "--user", "0", "--entrypoint", python, "--log-driver", "none",
                  image, "-B", "/infera-patches/apply.py", *options).strip()
    try:
        docker(module, "cp", applier, name + ":/infera-patches")
        # The command's own exit status is the applier's, which is not a failure of docker.
        return module.run_command([module.get_bin_path("docker", required=True), "start", "--attach", name])
    finally:
        docker(module, "rm", "--force", "--volumes", name)


def dockerfile(base, python, options, user, labels):
    """Text of the derived layer; the base's user is given back at the end."""
    lines = ["FROM " + base, "USER 0", "COPY patches/ %s/" % PLACE,
             "RUN " + json.dumps([python, "-B", PLACE + "/apply.py", "--ledger", "/usr/local/lib/infera/ledger.json"] + options)]
    if user:
        lines.append("USER " + user)
    return "\n".join(lines + ["LABEL %s=%s" % (name, json.dumps(value)) for name, value in sorted(labels.items())]) + "\n"


def derive(module, image, tag, python, applier, report, options):
    """Make `tag` an image with the patches. Returns (changed, id of the image that has them, None where it is still to be built)."""
    base = inspect(module, image)
    there = inspect(module, tag)
    if not report["changed"]:
        # Nothing to add: the name alone.
        changed = there is None or there["Id"] != base["Id"]
        if changed and not module.check_mode:
            docker(module, "tag", base["Id"], tag)
        return changed, base["Id"]
    labels = {LABEL: report["digest"], PARENT: base["Id"]}
    have = (there or {}).get("Config", {}).get("Labels") or {}
    if all(have.get(name) == value for name, value in labels.items()):
        return False, there["Id"]
    if module.check_mode:
        return True, None
    context = tempfile.mkdtemp(dir=module.tmpdir)
    try:
        shutil.copytree(applier, os.path.join(context, "patches"))
        with open(os.path.join(context, "Dockerfile"), "w", encoding="utf-8") as out:
            out.write(dockerfile(base["Id"], python, options, base.get("Config", {}).get("User"), labels))
        docker(module, "build", "--quiet", "--network", "none", "--tag", tag, context)
    finally:
        shutil.rmtree(context, ignore_errors=True)
    return True, identity(module, tag)

#!/usr/bin/python
# Copyright (c) 2026 The infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: image_base
short_description: Make the root file system of a Debian base image with debootstrap
version_added: 0.1.0
description:
  - Bootstraps a minimal Debian from the host's own apt sources, so that images can be built where no registry can be reached.
  - The result is one tar file below O(dest). It is made once; a later call with the same O(dest) finds it and does nothing.
requirements:
  - debootstrap and debian-archive-keyring on the host, run as root
author:
  - The infera.serving maintainers (@infera)
options:
  dest:
    description: Folder that receives C(rootfs.tar). The caller encodes in its name whatever the base depends on.
    type: path
    required: true
  suite:
    description: Debian code name of the base.
    type: str
    default: bookworm
  packages:
    description: Packages installed beside the minimal system.
    type: list
    elements: str
    default: []
  mirror:
    description: URL of a Debian mirror. Empty takes the main, updates and security archives of the host's own sources.
    type: str
    default: ""
  proxy:
    description: HTTP proxy for the downloads. Empty takes the one that apt is configured with.
    type: str
    default: ""
attributes:
  check_mode:
    description: Reports whether a base would be made, and makes none.
    support: full
  diff_mode:
    description: Not applicable, the result is a file system.
    support: none
"""

EXAMPLES = r"""
- name: Make the base of the images
  infera.serving.image_base:
    dest: /var/cache/infera/base/bookworm
    packages: [python3, ca-certificates]
"""

RETURN = r"""
rootfs:
  description: Path of the tar file.
  returned: always
  type: str
archives:
  description: The archives it was made from, as C(uri suite components).
  returned: when made
  type: list
  elements: str
"""

import glob
import os
import re
import shutil
import tempfile

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.infera.serving.plugins.module_utils import image_apt

UNWANTED = ("dev", "proc", "sys", "run", "tmp", "var/cache/apt/archives", "var/lib/apt/lists", "var/log", "usr/share/doc", "usr/share/man", "usr/share/locale")


def read(path):
    with open(path, "r", encoding="utf-8", errors="replace") as handle:
        return handle.read()


def host_sources():
    found = []
    for path in ["/etc/apt/sources.list"] + sorted(glob.glob("/etc/apt/sources.list.d/*.list")):
        if os.path.exists(path):
            found += image_apt.parse_list(read(path))
    for path in sorted(glob.glob("/etc/apt/sources.list.d/*.sources")):
        found += image_apt.parse_sources(read(path))
    return found


def release_value(name):
    match = re.search(r'^{0}="?([^"\n]*)"?$'.format(name), read("/etc/os-release"), re.M)
    return match.group(1) if match else ""


def last_lines(text, count=3):
    return " | ".join(text.strip().splitlines()[-count:])


class Maker:
    def __init__(self, module):
        self.module = module
        self.suite = module.params["suite"]
        self.env = {"LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}

    def run(self, command, what):
        code, out, err = self.module.run_command(command, environ_update=self.env)
        if code:
            self.module.fail_json(msg="{0} failed: {1}".format(what, last_lines(err or out)), rc=code)
        return out

    def archives(self):
        mirror = self.module.params["mirror"]
        if mirror:
            return [(mirror.rstrip("/"), self.suite, "main")]
        if release_value("ID") != "debian":
            raise image_apt.AptError("image_debian_mirror is empty and this host runs {0}, not Debian: set it to the URL of a Debian mirror"
                                     .format(release_value("ID") or "an unknown system"))
        return image_apt.debian_archives(host_sources(), release_value("VERSION_CODENAME"), self.suite)

    def proxy(self):
        proxy = self.module.params["proxy"]
        if not proxy:
            out = self.run(["apt-config", "dump", "--format", "%f %v%n", "Acquire::http::Proxy"], "apt-config")
            words = out.split()
            proxy = words[1] if len(words) == 2 else ""
        if proxy:
            self.env.update(http_proxy=proxy, https_proxy=proxy)

    def make(self, tar):
        tool = self.module.get_bin_path("debootstrap", required=True)
        if not os.path.exists(image_apt.DEBIAN_KEYRING):
            self.module.fail_json(msg="{0} is missing: install the package debian-archive-keyring".format(image_apt.DEBIAN_KEYRING))
        archives = self.archives()
        self.proxy()
        work = tempfile.mkdtemp(prefix=".base-", dir=os.path.dirname(tar))
        root = os.path.join(work, "root")
        try:
            command = [tool, "--variant=minbase", "--keyring=" + image_apt.DEBIAN_KEYRING]
            if self.module.params["packages"]:
                command.append("--include=" + ",".join(self.module.params["packages"]))
            self.run(command + [self.suite, root, archives[0][0]], "debootstrap of {0} from {1}".format(self.suite, archives[0][0]))
            self.finish(root, archives)
            self.run(["tar", "--numeric-owner", "-C", root, "-cf", tar + ".new", "."], "tar")
            os.rename(tar + ".new", tar)
        finally:
            shutil.rmtree(work, ignore_errors=True)
        return [" ".join(archive) for archive in archives]

    def finish(self, root, archives):
        """Security fixes, then everything out that an image does not need."""
        listing = os.path.join(root, "etc/apt/sources.list")
        if os.path.exists(listing):
            os.unlink(listing)
        with open(os.path.join(root, "etc/apt/sources.list.d/debian.sources"), "w", encoding="utf-8") as handle:
            handle.write(image_apt.sources_text(archives))
        if len(archives) > 1:
            self.run(["chroot", root, "apt-get", "-q", "update"], "apt-get update in the base")
            self.run(["chroot", root, "apt-get", "-qy", "-o", "Dpkg::Options::=--force-confold", "dist-upgrade"], "apt-get dist-upgrade in the base")
        for relative in UNWANTED:
            folder = os.path.join(root, relative)
            for entry in os.listdir(folder) if os.path.isdir(folder) else []:
                path = os.path.join(folder, entry)
                if os.path.isdir(path) and not os.path.islink(path):
                    shutil.rmtree(path)
                else:
                    os.unlink(path)
        for relative in ("etc/machine-id", "etc/hostname", "etc/resolv.conf"):
            path = os.path.join(root, relative)
            if os.path.lexists(path):
                os.unlink(path)


def main():
    module = AnsibleModule(
        argument_spec={
            "dest": {"type": "path", "required": True},
            "suite": {"type": "str", "default": "bookworm"},
            "packages": {"type": "list", "elements": "str", "default": []},
            "mirror": {"type": "str", "default": ""},
            "proxy": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    dest = module.params["dest"]
    tar = os.path.join(dest, "rootfs.tar")
    if os.path.isfile(tar):
        module.exit_json(changed=False, rootfs=tar)
    if module.check_mode:
        module.exit_json(changed=True, rootfs=tar)
    if os.geteuid() != 0:
        module.fail_json(msg="debootstrap needs root: set become for the build host")
    os.makedirs(dest, exist_ok=True)
    try:
        archives = Maker(module).make(tar)
    except image_apt.AptError as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg="could not make the base below {0}: {1}".format(dest, error))
    module.exit_json(changed=True, rootfs=tar, archives=archives)


if __name__ == "__main__":
    main()

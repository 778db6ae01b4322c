#!/usr/bin/python
# Copyright (c) 2026, the infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: mooncake_engine_info
short_description: Read what a Mooncake engine can do from its binary
version_added: 0.1.0
description:
  - Reads the bytes of C(mooncake/engine*.so) in a file, a wheel, a folder, a container or an image. The engine is
    never imported, so no GPU is needed.
  - Mooncake before 0.3.13 cuts a registration above the limit short and still advertises the whole length. The package
    version says nothing about an engine that was built and copied over the package's, so the binary is asked.
  - The fix that gives each dma-buf piece its own offset leaves no mark in the binary. Only the commit that it was built
    from shows it.
author:
  - The infera.serving maintainers (@infera)
extends_documentation_fragment:
  - infera.serving.attributes
  - infera.serving.attributes.info
options:
  path:
    description:
      - The engine's C(.so), a wheel, or a folder such as C(site-packages), on the host.
      - With O(container) or O(image) a path inside, of the C(.so) or of the mooncake package.
    type: str
  container:
    description:
      - A running container to read from, by name. Without O(path) its Python says where mooncake is.
    type: str
  image:
    description:
      - An image to read from, through a container that is removed again. Without O(path) a short run of its Python, without a network, says where
        mooncake is.
    type: str
  python:
    description:
      - The Python inside O(container) or O(image).
    type: str
    default: python3
  require:
    description:
      - Capabilities without which the module fails; the message says what goes wrong without each.
      - Any of C(mr_split), C(no_truncation), C(dmabuf), C(hip), C(routing).
    type: list
    elements: str
    default: []
notes:
  - O(container) and O(image) use the C(docker) command of the host.
"""

EXAMPLES = r"""
- name: Read the engine of a running worker, and stop unless it splits registrations
  infera.serving.mooncake_engine_info:
    container: infera-prefill-0
    require: [mr_split, dmabuf]
  register: engine

- name: Read a wheel
  infera.serving.mooncake_engine_info:
    path: /srv/wheels/mooncake_transfer_engine_rocm-0.3.13.post1-cp311-cp311-manylinux_2_35_x86_64.whl
"""

RETURN = r"""
path:
  description: The engine that was read.
  returned: success
  type: str
sha256:
  description: Its SHA-256.
  returned: success
  type: str
distribution:
  description: Name of the package beside it.
  returned: success
  type: str
version:
  description: Version of that package, which a replaced engine does not change.
  returned: success
  type: str
capabilities:
  description: What the engine can do.
  returned: success
  type: dict
  contains:
    mr_split: {description: Whether it splits a registration above the limit; null when the binary does not say., type: bool, returned: always}
    truncates: {description: Whether it cuts such a registration short., type: bool, returned: always}
    dmabuf: {description: Whether it registers GPU memory through dma-buf., type: bool, returned: always}
    hip: {description: Whether it needs AMD's HIP library., type: bool, returned: always}
    routing: {description: Whether it knows MC_DISABLE_HIP (locality routing)., type: bool, returned: always}
    gpu_prefix: {description: How GPU rows of a topology file are called., type: str, returned: always, sample: hip}
    reads_mr_size: {description: Whether it reads MC_MAX_MR_SIZE., type: bool, returned: always}
    force_hca: {description: Whether it knows MC_FORCE_HCA., type: bool, returned: always}
    environment: {description: The MC_ and MOONCAKE_ names in it., type: list, elements: str, returned: always}
    needed: {description: Libraries that it needs., type: list, elements: str, returned: always}
missing:
  description: What O(require) asked for and is not there.
  returned: failure
  type: list
  elements: str
"""

import os
import re

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.infera.serving.plugins.module_utils import mooncake_container as containers
from ansible_collections.infera.serving.plugins.module_utils.mooncake_engine import EngineError, capabilities, missing, read_engine, sha256


def one_engine(text, where):
    found = text.split()
    if len(found) != 1:
        raise EngineError("%s: its Python finds %d engines of a package mooncake (%s); one is needed" % (where, len(found), ", ".join(found) or "none"))
    return found[0]


def from_container(module, container, path):
    """Return ``(bytes, path inside)``; ``path``: an engine's .so, or the package's folder."""
    if path.endswith(".so"):
        return containers.copy_out(module, container, path), path
    found = containers.copy_folder(module, container, path, lambda name: re.match(r"engine.*\.so$", name))
    if len(found) != 1:
        raise EngineError("%s:%s holds %d engines (%s); one is needed" % (container, path, len(found), ", ".join(sorted(found)) or "none"))
    name, data = found.popitem()
    return data, os.path.join(path, name)


def read(module):
    """Return ``(bytes, where, distribution, version)``."""
    path, container, image, python = (module.params[name] for name in ("path", "container", "image", "python"))
    if container:
        path = path or one_engine(containers.docker(module, "exec", container, python, "-c", containers.FIND_ENGINES), container)
        data, inside = from_container(module, container, path)
        return data, "%s:%s" % (container, inside), None, None
    if image:
        path = path or one_engine(containers.docker(
            module, "run", "--rm", "--network", "none", "--entrypoint", python, image, "-c", containers.FIND_ENGINES), image)
        with containers.Stopped(module, image) as name:
            data, inside = from_container(module, name, path)
        return data, "%s:%s" % (image, inside), None, None
    return read_engine(path)


def main():
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "str"},
            "container": {"type": "str"},
            "image": {"type": "str"},
            "python": {"type": "str", "default": "python3"},
            "require": {"type": "list", "elements": "str", "default": []},
        },
        required_one_of=[["path", "container", "image"]],
        mutually_exclusive=[["container", "image"]],
        supports_check_mode=True,
    )
    try:
        data, where, distribution, version = read(module)
        found = capabilities(data)
        lacking = missing(found, module.params["require"])
    except (EngineError, containers.ContainerError) as error:
        module.fail_json(msg=str(error))
    result = {"path": where, "sha256": sha256(data), "distribution": distribution, "version": version, "capabilities": found}
    if lacking:
        module.fail_json(msg="%s: %s" % (where, "; ".join(lacking)), missing=lacking, **result)
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()

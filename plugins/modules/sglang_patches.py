#!/usr/bin/python
# Copyright (c) 2026 The infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_patches
short_description: Report or apply this collection's patches of SGLang
version_added: 0.1.0
description:
  - Runs the applier of C(images/sglang/patches) on an SGLang that is installed on a host, or in an image, and returns its ledger. For each patch it says
    whether it is baked in, already upstream, not needed on this base, or refused, and why.
  - An image is looked at in a container without a network, which is removed again. Patches go into a derived image, one layer upon O(image); running
    containers are never changed.
  - The applier decides from the sources that it finds, all or nothing. One refused patch leaves everything untouched.
author:
  - The infera.serving maintainers (@infera)
extends_documentation_fragment:
  - infera.serving.attributes
options:
  site_packages:
    description: Folder on the host that holds C(sglang/).
    type: path
  image:
    description: An image on the host, by name or id.
    type: str
  tag:
    description: Name of the derived image. Needed with O(image) and O(state=applied).
    type: str
  state:
    description:
      - V(reported) reads only.
      - V(applied) patches what is not patched yet.
    type: str
    choices: [reported, applied]
    default: reported
  only:
    description: These patches alone, by name.
    type: list
    elements: str
    default: []
  expect:
    description:
      - A base of the manifest, for example V(0.5.22). Rows that differ from what the manifest expects of it are in RV(differences), and with
        O(state=applied) nothing is changed then.
    type: str
  python:
    description: The interpreter on the host, or in the image, that runs SGLang. Bytecode is compiled for it.
    type: str
    default: python3
  applier:
    description: Archive of the applier on the host. The action plugin of the same name puts this collection's there.
    type: path
attributes:
  action:
    description: Carries the applier to the host.
    support: full
  check_mode:
    support: full
  diff_mode:
    support: full
  idempotent:
    support: full
notes:
  - O(image) uses the C(docker) command of the host.
"""

EXAMPLES = r"""
- name: Report what an image needs
  infera.serving.sglang_patches:
    image: lmsysorg/sglang-rocm:v0.5.22-rocm720-mi35x-20261018
  register: patches

- name: Patch the image that a site runs already, by one layer upon it
  infera.serving.sglang_patches:
    image: registry.example.org:5000/sglang:v0.5.22
    tag: registry.example.org:5000/sglang:v0.5.22-patched
    state: applied
    expect: v0.5.22-rocm720-mi35x-20261018

- name: Patch an SGLang in a virtual environment
  infera.serving.sglang_patches:
    site_packages: /opt/sglang/lib/python3.11/site-packages
    python: /opt/sglang/bin/python
    state: applied
"""

RETURN = r"""
ledger:
  description: One row for each patch.
  returned: success, and when a patch was refused
  type: list
  elements: dict
  contains:
    name: {description: The patch., type: str, returned: always}
    subject: {description: What it is about., type: str, returned: always}
    status: {description: "V(baked), V(already upstream), V(not needed) or V(refused).", type: str, returned: always}
    evidence: {description: What shows it., type: str, returned: always}
    changed: {description: Whether its files change., type: bool, returned: always}
    files: {description: Its files below C(sglang/)., type: list, elements: str, returned: always}
digest:
  description: SHA-256 over the statuses and the patched files, equal before and after patching. The label C(infera.serving.ledger) of our images.
  returned: as RV(ledger)
  type: str
differences:
  description: Rows that were refused, or differ from O(expect).
  returned: as RV(ledger)
  type: list
  elements: str
image:
  description: Id of the image that has the patches; the one given where it needs none.
  returned: with O(image), unless a layer would be built in check mode
  type: str
"""

import os
import shutil
import tarfile
import tempfile

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.infera.serving.plugins.module_utils import sglang_image
from ansible_collections.infera.serving.plugins.module_utils.mooncake_container import ContainerError
from ansible_collections.infera.serving.plugins.module_utils.sglang_ledger import LedgerError, faults, parse_report


def options(params, check, diff):
    """Arguments of apply.py."""
    arguments = ["--json"] + (["--check"] if check else []) + (["--diff"] if diff else [])
    for name in params["only"]:
        arguments += ["--only", name]
    return arguments + (["--expect", params["expect"]] if params["expect"] else [])


def on_host(module, applier, check):
    """The report of a run on a folder of this host."""
    command = [module.params["python"], "-B", os.path.join(applier, "apply.py"), "--site-packages", module.params["site_packages"]]
    try:
        code, out, err = module.run_command(command + options(module.params, check, module._diff), handle_exceptions=False)
    except OSError as error:
        raise LedgerError("python %r: %s" % (module.params["python"], error.strerror))
    return parse_report(code, out, err)


def in_image(module, applier):
    """The report of a check in a container of the image."""
    return parse_report(*sglang_image.run(module, module.params["image"], module.params["python"], applier, options(module.params, True, module._diff)))


def result_of(report):
    result = {"ledger": report["ledger"], "digest": report["digest"], "differences": faults(report), "changed": False}
    if "diff" in report:
        result["diff"] = {"prepared": report["diff"]}
    return result


def work(module, applier):
    """The module's result."""
    params = module.params
    image, applied = params["image"], params["state"] == "applied"
    report = in_image(module, applier) if image else on_host(module, applier, check=True)
    result = result_of(report)
    if image:
        result["image"] = sglang_image.identity(module, image)
    if not applied:
        return result
    if report["status"]:
        return dict(result, failed=True, msg="nothing was changed: " + "; ".join(result["differences"]))
    if image:
        changed, derived = sglang_image.derive(module, image, params["tag"], params["python"], applier, report, options(params, False, False))
        result.update(changed=changed, image=derived)
        if derived is None:
            del result["image"]
        return result
    result["changed"] = report["changed"]
    if not module.check_mode:
        report = on_host(module, applier, check=False)
        if report["status"]:
            return dict(result, failed=True, ledger=report["ledger"], differences=faults(report), changed=report["written"], msg="; ".join(faults(report)))
    return result


def main():
    module = AnsibleModule(
        argument_spec={
            "site_packages": {"type": "path"},
            "image": {"type": "str"},
            "tag": {"type": "str"},
            "state": {"type": "str", "choices": ["reported", "applied"], "default": "reported"},
            "only": {"type": "list", "elements": "str", "default": []},
            "expect": {"type": "str"},
            "python": {"type": "str", "default": "python3"},
            "applier": {"type": "path"},
        },
        mutually_exclusive=[("site_packages", "image")],
        required_one_of=[("site_packages", "image")],
        required_by={"tag": "image"},
        supports_check_mode=True,
    )
    params = module.params
    if params["image"] and params["state"] == "applied" and not params["tag"]:
        module.fail_json(msg="tag: not set; image %s is never changed, so state applied needs a name for the derived image" % params["image"])
    if not params["applier"]:
        module.fail_json(msg="applier: not set; call the module as infera.serving.sglang_patches, whose action plugin carries it over")
    applier = tempfile.mkdtemp(dir=module.tmpdir)
    try:
        with tarfile.open(params["applier"]) as archive:
            for member in archive:
                sglang_image.unpack(archive, member, applier)
        result = work(module, applier)
    except (LedgerError, ContainerError, OSError, tarfile.TarError) as error:
        module.fail_json(msg=str(error))
    finally:
        shutil.rmtree(applier, ignore_errors=True)
    if result.pop("failed", False):
        module.fail_json(**result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()

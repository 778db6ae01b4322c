#!/usr/bin/python
# Copyright (c) 2026, the infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: mooncake_log_facts
short_description: Read from an engine's log what Mooncake really did
version_added: 0.1.0
description:
  - Almost every RDMA failure of Mooncake degrades to TCP with return code 0. Its log says what happened.
  - With O(expect_transport) the module fails when the log contradicts it, with every reason and what to do.
author:
  - The infera.serving maintainers (@infera)
extends_documentation_fragment:
  - infera.serving.attributes
  - infera.serving.attributes.info
options:
  text:
    description:
      - The log.
    type: str
  path:
    description:
      - A file with the log, on the host.
    type: path
  container:
    description:
      - A container whose log is read.
    type: str
  since:
    description:
      - Read the log of O(container) from this time on, as C(docker logs --since) takes it. Without it from its last start on.
    type: str
  expect_transport:
    description:
      - Fail unless the engine uses this transport and nothing went wrong with it.
    type: str
    choices: [rdma, tcp]
  expect_rails:
    description:
      - How many rails every engine has to have found, with O(expect_transport=rdma).
    type: int
"""

EXAMPLES = r"""
- name: Fail the deployment when a worker fell back on TCP
  infera.serving.mooncake_log_facts:
    container: infera-decode-0
    expect_transport: rdma
    expect_rails: 8
"""

RETURN = r"""
transport:
  description: C(rdma), C(tcp), C(failed) when RDMA was wanted and could not start, or null when the log does not say.
  returned: success
  type: str
tcp_fallback:
  description: Whether it uses TCP although nobody forced it.
  returned: success
  type: bool
tcp_forced:
  description: Whether MC_FORCE_TCP was set.
  returned: success
  type: bool
hcas_found:
  description: The smallest number of HCAs that a process found; null when the log does not say.
  returned: success
  type: int
engines:
  description: How many transfer engines started.
  returned: success
  type: int
gids:
  description: GID index by device.
  returned: success
  type: dict
gid_index_user:
  description: The GID index that MC_GID_INDEX gave, in a list; null when unset.
  returned: success
  type: list
  elements: int
gid_null:
  description: Whether a device was disabled because its GID is empty.
  returned: success
  type: bool
chunk_limit:
  description: The largest piece in bytes that registrations were split into; null when none was split.
  returned: success
  type: int
split_count:
  description: How many registrations were split.
  returned: success
  type: int
chunks:
  description: How many pieces they were split into, in all.
  returned: success
  type: int
truncations:
  description: How many registrations an old engine cut short.
  returned: success
  type: int
disabled_devices:
  description: Devices that Mooncake skipped or disabled.
  returned: success
  type: list
  elements: str
register_failures:
  description: Lines about registrations that failed.
  returned: success
  type: list
  elements: str
dmabuf_disabled:
  description: Whether registration through dma-buf was switched off or given up.
  returned: success
  type: bool
topology_failed:
  description: Whether the custom topology file was missing or malformed.
  returned: success
  type: bool
ignored_variables:
  description: Variables whose value Mooncake ignored.
  returned: success
  type: list
  elements: str
abi_complaints:
  description: libibverbs' complaints about kernel ABI numbers, each with driver, kernel, low and high.
  returned: success
  type: list
  elements: dict
gpu_memory_faults:
  description: Lines about GPU memory access faults.
  returned: success
  type: list
  elements: str
evidence:
  description: Lines that decided the transport.
  returned: success
  type: list
  elements: str
complete:
  description: False when rotation has taken the log's beginning; a missing transport is no fault then.
  returned: success
  type: bool
faults:
  description: What contradicts O(expect_transport), one line each.
  returned: when O(expect_transport) is given
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.infera.serving.plugins.module_utils.mooncake_log import NO_TRANSPORT, faults, parse, unstamp, within

# An engine writes its first line well within this many seconds after its start.
FIRST_LINE = 120


def container_log(module, name, since):
    """Return ``(text, complete)``: a container's log since its last start; not complete when rotation has taken the beginning."""
    docker = module.get_bin_path("docker", required=True)
    if not since:
        code, out, err = module.run_command([docker, "inspect", "--type", "container", "--format", "{{.State.StartedAt}}", name])
        if code:
            module.fail_json(msg="docker inspect %s: %s" % (name, err.strip()))
        since = out.strip()
    code, out, err = module.run_command([docker, "logs", "--timestamps", "--since", since, name])
    if code:
        module.fail_json(msg="docker logs %s: %s" % (name, err.strip()))
    text, first = unstamp(out + err)
    return text, not first or within(since, first, FIRST_LINE)


def main():
    module = AnsibleModule(
        argument_spec={
            "text": {"type": "str"},
            "path": {"type": "path"},
            "container": {"type": "str"},
            "since": {"type": "str"},
            "expect_transport": {"type": "str", "choices": ["rdma", "tcp"]},
            "expect_rails": {"type": "int"},
        },
        required_one_of=[["text", "path", "container"]],
        mutually_exclusive=[["text", "path", "container"]],
        supports_check_mode=True,
    )
    params = module.params
    complete = True
    where = params["container"] or params["path"] or "the log"
    if params["container"]:
        text, complete = container_log(module, params["container"], params["since"])
    elif params["path"]:
        try:
            with open(params["path"], "r", errors="replace") as handle:
                text = handle.read()
        except OSError as error:
            module.fail_json(msg="path=%s: %s" % (params["path"], error.strerror))
    else:
        text = params["text"]
    facts = dict(parse(text), complete=complete)
    if params["expect_transport"]:
        facts["faults"] = faults(facts, params["expect_transport"], params["expect_rails"])
        if not complete and facts["transport"] is None:
            facts["faults"] = [fault for fault in facts["faults"] if not fault.startswith(NO_TRANSPORT)]
            module.warn("%s: its log was rotated since the start, so the transport cannot be read any more" % where)
        if facts["faults"]:
            module.fail_json(msg="%s: %s" % (where, "; ".join(facts["faults"])), **facts)
    module.exit_json(changed=False, **facts)


if __name__ == "__main__":
    main()

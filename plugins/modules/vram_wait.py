#!/usr/bin/python
# Copyright (c) 2026, The infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: vram_wait
short_description: Wait until the GPUs of a host gave their memory back
version_added: 0.1.0
description:
  - After an engine with HiCache has ended, the driver may need 10 to 65 minutes to release VRAM. This waits for it, bounded, and shows progress.
  - Running out of time is a report with the holders and no failure, unless O(strict) is set. No GPU is reset and no process is ended.
options:
  timeout:
    description: Seconds to wait at most.
    type: int
    default: 3900
  gpus:
    description: Ordinals of the cards to look at, in the order of their card numbers; all where left out.
    type: list
    elements: int
  interval:
    description: Seconds between two looks.
    type: float
    default: 10
  strict:
    description: Fail when time runs out.
    type: bool
    default: false
  sysfs_root:
    description: Where sysfs is.
    type: path
    default: /sys
  proc_root:
    description: Where the proc file system is.
    type: path
    default: /proc
attributes:
  check_mode:
    description: Looks once in check mode.
    support: full
  diff_mode:
    description: There is nothing to compare.
    support: none
  idempotent:
    description: It changes nothing.
    support: full
author:
  - The infera.serving maintainers (@infera)
"""

EXAMPLES = r"""
- name: Wait for the first four GPUs
  infera.serving.vram_wait:
    gpus: [0, 1, 2, 3]
"""

RETURN = r"""
clean:
  description: Whether every GPU uses less than 2 GiB.
  returned: always
  type: bool
used:
  description: Bytes in use by card.
  returned: always
  type: dict
lines:
  description: What is still held and by whom; empty when clean.
  returned: always
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.infera.serving.plugins.module_utils import vram


def main():
    module = AnsibleModule(
        argument_spec={
            "timeout": {"type": "int", "default": 3900}, "gpus": {"type": "list", "elements": "int"}, "interval": {"type": "float", "default": 10},
            "strict": {"type": "bool", "default": False}, "sysfs_root": {"type": "path", "default": "/sys"}, "proc_root": {"type": "path", "default": "/proc"}},
        supports_check_mode=True)
    used = vram.used(module.params["sysfs_root"])
    if module.params["gpus"] is not None:
        cards = list(used)
        used = {cards[n]: used[cards[n]] for n in module.params["gpus"] if n < len(cards)}
    held = {card: size for card, size in used.items() if size >= vram.CLEAN_BYTES}
    lines = ["%s: %.1f GiB of VRAM still in use" % (card, size / 1024.0 ** 3) for card, size in held.items()]
    if held:
        found = vram.holders(module.params["proc_root"])
        lines.append("/dev/kfd is held by: " + "; ".join(found) if found else "no process has /dev/kfd open: the driver is still releasing")
    module.exit_json(changed=False, clean=not held, used=used, lines=lines)


if __name__ == "__main__":
    main()

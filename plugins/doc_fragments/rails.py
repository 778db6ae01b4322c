# Copyright (c) 2026, the infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Options of modules that read a host's /sys and its neighbours."""
from __future__ import annotations


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  sysfs_root:
    description:
      - Where sysfs is. Another folder than V(/sys) is a tree for tests.
    type: path
    default: /sys
  dev_root:
    description:
      - Where the device files are.
      - Without it V(/dev) is used when O(sysfs_root=/sys), and no device file is looked for otherwise.
    type: path
  proc_root:
    description:
      - Where procfs is.
      - Without it V(/proc) is used when O(sysfs_root=/sys), and it is not looked at otherwise.
    type: path
"""

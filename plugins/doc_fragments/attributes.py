# Copyright (c) 2026, the infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the modules of this collection have in common."""
from __future__ import annotations


class ModuleDocFragment:
    DOCUMENTATION = r"""
options: {}
attributes:
  check_mode:
    description: Can run in C(check_mode) and return changed status prediction without modifying the target.
  diff_mode:
    description: Will return details on what has changed (or possibly needs changing in C(check_mode)), when in diff mode.
  idempotent:
    description: When run twice in a row with the same arguments, the second run reports no change.
"""

    INFO = r"""
options: {}
attributes:
  check_mode:
    support: full
    details:
      - It only reads.
  diff_mode:
    support: none
    details:
      - It only reads.
  idempotent:
    support: full
    details:
      - It only reads, and never reports a change.
"""

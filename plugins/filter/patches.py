# Copyright (c) 2026 The infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters over the ledger of infera.serving.sglang_patches; each has a page of its own beside this file."""
from __future__ import annotations

from ansible.errors import AnsibleFilterError
from ansible_collections.infera.serving.plugins.module_utils import sglang_ledger


def patch_page_differences(report, page, base):
    try:
        return sglang_ledger.beside_page(report["ledger"], report["digest"], page, base)
    except (sglang_ledger.LedgerError, KeyError, TypeError) as error:
        raise AnsibleFilterError("patch_page_differences: %s" % error)


class FilterModule:
    def filters(self):
        return {
            "patch_page_differences": patch_page_differences,
            "patch_table": sglang_ledger.table,
        }

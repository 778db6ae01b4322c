# Copyright (c) 2026, the infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tests around Mooncake and its rails; each has a page of its own beside this file."""
from __future__ import annotations

from ansible_collections.infera.serving.plugins.module_utils import mooncake_mr, rails_gids


def valid_mr_size(value, driver="ionic", gpu_mr_path="dmabuf"):
    try:
        mooncake_mr.check(value if value != "" else None, driver, gpu_mr_path)
    except mooncake_mr.MrSizeError:
        return False
    return True


def routable_gid(value):
    try:
        return rails_gids.gid_kind(value) in rails_gids.ROUTABLE
    except ValueError:
        return False


class TestModule:
    def tests(self):
        return {"routable_gid": routable_gid, "valid_mr_size": valid_mr_size}

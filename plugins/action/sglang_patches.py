# Copyright (c) 2026 The infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Carries the applier of this collection to the host, then runs the module of the same name there."""
from __future__ import annotations

import io
import os
import pathlib
import tarfile
import tempfile

from ansible.plugins.action import ActionBase

APPLIER = pathlib.Path(__file__).resolve().parents[2] / "images" / "sglang" / "patches"


def packed():
    """The applier as the bytes of a tar archive: its Python files and the manifest, without times and owners."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for path in sorted(APPLIER.rglob("*")):
            if path.suffix in (".py", ".json") and path.is_file():
                entry = tarfile.TarInfo(path.relative_to(APPLIER).as_posix())
                entry.size, entry.mode = path.stat().st_size, 0o644
                with path.open("rb") as stream:
                    archive.addfile(entry, stream)
    return out.getvalue()


class ActionModule(ActionBase):
    TRANSFERS_FILES = True

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        arguments = dict(self._task.args)
        if arguments.get("applier"):
            result.update(self._execute_module(module_args=arguments, task_vars=task_vars))
            return result
        if not APPLIER.is_dir():
            return dict(result, failed=True, msg="%s is missing from the collection: install it whole" % APPLIER)
        handle, local = tempfile.mkstemp(suffix=".tar")
        try:
            with os.fdopen(handle, "wb") as out:
                out.write(packed())
            remote = self._connection._shell.join_path(self._connection._shell.tmpdir, "applier.tar")
            self._transfer_file(local, remote)
            self._fixup_perms2((self._connection._shell.tmpdir, remote))
            result.update(self._execute_module(module_args=dict(arguments, applier=remote), task_vars=task_vars))
        finally:
            os.unlink(local)
            self._remove_tmp_path(self._connection._shell.tmpdir)
        return result

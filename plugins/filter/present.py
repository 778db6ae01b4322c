# Copyright (c) 2026, The infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters that select from and lay out what status and smoke show."""
from __future__ import annotations

from ansible.errors import AnsibleFilterError

try:
    import jmespath
except ImportError:
    jmespath = None


def json_query(data, expression):
    """Select from *data* with a JMESPath expression."""
    if jmespath is None:
        raise AnsibleFilterError("infera.serving.json_query needs jmespath on the controller; `make venv` installs it")
    try:
        return jmespath.search(expression, data)
    except jmespath.exceptions.JMESPathError as error:
        raise AnsibleFilterError(f"infera.serving.json_query: {expression!r}: {error}") from None


def table(rows, columns):
    """Lay out dictionaries as lines of aligned columns; a missing value is shown as a dash."""
    cells = [[str(name) for name in columns]]
    for row in rows:
        cells.append(["-" if row.get(name) in (None, "") else " ".join(str(row[name]).split()) for name in columns])
    widths = [max(len(line[n]) for line in cells) for n in range(len(columns))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in cells]


class FilterModule:
    def filters(self):
        return {"json_query": json_query, "table": table}

#!/usr/bin/python
# Copyright (c) 2026, The infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: metrics_watch
short_description: Sample metrics pages until told to stop
version_added: 0.1.0
description:
  - Appends acceptance length, cache hit rate, queues and the router's demand of each page to O(dest) every O(interval) seconds, until O(stop_file) exists.
  - Run it with C(async) beside a benchmark. A page that cannot be read becomes a visible gap, never a zero.
author:
  - The infera.serving maintainers (@infera)
options:
  pages:
    description: URL of the metrics page by container name.
    type: dict
    required: true
  dest:
    description: JSON-lines file; samples are appended.
    type: path
    required: true
  stop_file:
    description: The watch ends when this file exists.
    type: path
    required: true
  interval:
    description: Seconds between two samples of a page.
    type: float
    default: 5
  limit:
    description: Seconds after which the watch ends by itself.
    type: int
    default: 14400
requirements:
  - requests
attributes:
  check_mode:
    description: Reads nothing.
    support: full
  diff_mode:
    description: There is nothing to compare.
    support: none
"""

EXAMPLES = r"""
- name: Watch the engines
  infera.serving.metrics_watch:
    pages: {1p1d-decode-0: "http://10.0.0.2:31000/metrics"}
    dest: /var/lib/infera/1p1d/evaluation/watch.jsonl
    stop_file: /var/lib/infera/1p1d/evaluation/watch.stop
  async: 14400
  poll: 0
"""

RETURN = r"""
samples:
  description: Lines that were appended.
  type: int
  returned: success
"""

import traceback

from ansible.module_utils.basic import AnsibleModule, missing_required_lib
from ansible_collections.infera.serving.plugins.module_utils import metrics_watch

try:
    import requests
except ImportError:
    REQUESTS_ERROR = traceback.format_exc()
else:
    REQUESTS_ERROR = None


def main() -> None:
    module = AnsibleModule(
        argument_spec={"pages": {"type": "dict", "required": True}, "dest": {"type": "path", "required": True},
                       "stop_file": {"type": "path", "required": True}, "interval": {"type": "float", "default": 5},
                       "limit": {"type": "int", "default": 14400}},
        supports_check_mode=True)
    if REQUESTS_ERROR:
        module.fail_json(msg=missing_required_lib("requests"), exception=REQUESTS_ERROR)
    if module.check_mode:
        module.exit_json(changed=False, samples=0)
    params = module.params
    session = requests.Session()

    def fetch(url):
        page = session.get(url, timeout=5)
        page.raise_for_status()
        return page.text

    samples = metrics_watch.watch(params["pages"], params["dest"], fetch, params["interval"], params["stop_file"], params["limit"])
    module.exit_json(changed=bool(samples), samples=samples)


if __name__ == "__main__":
    main()

# Copyright (c) 2026 The infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
name: image_digest
short_description: The digest of an image by its name
version_added: 0.1.0
author:
  - The infera.serving maintainers (@infera)
description:
  - Finds the image that carries the name and returns what identifies its content.
options:
  _input:
    description: The image's name with its tag.
    type: str
    required: true
  images:
    description: What C(community.docker.docker_image_info) returned as C(images).
    type: list
    elements: dict
    required: true
"""

EXAMPLES = r"""
- name: Show it
  ansible.builtin.debug:
    msg: "{{ 'infera/router:0123456789abcdef' | infera.serving.image_digest(info.images) }}"
"""

RETURN = r"""
_value:
  description: The registry's digest where the image was pushed or pulled under this name, else the image's id; empty where it is missing.
  type: str
"""


def image_digest(name, images):
    repository = name.rpartition(":")[0]
    for image in images:
        if name in (image.get("RepoTags") or []):
            for reference in image.get("RepoDigests") or []:
                if reference.startswith(repository + "@"):
                    return reference.partition("@")[2]
            return image["Id"]
    return ""


class FilterModule:
    def filters(self):
        return {"image_digest": image_digest}

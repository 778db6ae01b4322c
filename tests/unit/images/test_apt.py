# Copyright (c) 2026 The infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where a Debian base comes from follows from the build host's own apt sources."""
from __future__ import annotations

import pytest
from ansible_collections.infera.serving.plugins.module_utils import image_apt

ONE_LINE = """
# deb http://commented.example/debian bookworm main
deb-src http://mirror.example/debian bookworm main
deb [arch=amd64 signed-by=/usr/share/keyrings/x.gpg] http://mirror.example/debian/ bookworm main contrib
deb http://mirror.example/debian bookworm-updates main
deb http://mirror.example/debian-security bookworm-security main
deb http://vendor.example/apt stable main
"""
DEB822 = """
Types: deb
# a comment between fields
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://mirror.example/debian-security
Suites: bookworm-security
Components: main

Enabled: no
Types: deb
URIs: http://off.example/debian
Suites: bookworm
Components: main
"""
WANTED = [("http://mirror.example/debian", "bookworm", "main"), ("http://mirror.example/debian", "bookworm-updates", "main"),
          ("http://mirror.example/debian-security", "bookworm-security", "main")]


@pytest.mark.parametrize("sources", [image_apt.parse_list(ONE_LINE), image_apt.parse_sources(DEB822)], ids=["list", "deb822"])
def test_the_archives_are_the_hosts(sources):
    assert image_apt.debian_archives(sources, "bookworm", "bookworm") == WANTED


def test_another_release_is_taken_from_the_same_mirror():
    archives = image_apt.debian_archives(image_apt.parse_sources(DEB822.replace("bookworm", "trixie")), "trixie", "bookworm")
    assert archives == WANTED


def test_a_host_without_debian_archives_is_told_what_to_set():
    with pytest.raises(image_apt.AptError, match="image_debian_mirror"):
        image_apt.debian_archives(image_apt.parse_list("deb http://vendor.example/apt stable main"), "bookworm", "bookworm")


def test_what_is_written_can_be_read_again():
    again = image_apt.parse_sources(image_apt.sources_text(WANTED))
    assert image_apt.debian_archives(again, "bookworm", "bookworm") == WANTED

# Copyright (c) 2026 The infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read apt's source lists, and derive from them where a Debian base can be made from. Pure: texts in, values out."""
from __future__ import annotations

from collections import namedtuple

Source = namedtuple("Source", "uris suites components signed_by")
DEBIAN_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


class AptError(ValueError):
    """No usable Debian archive; the text names the variable to set."""


def parse_list(text):
    """Entries of a one-line style file (``sources.list``)."""
    found = []
    for line in text.splitlines():
        words = line.split("#", 1)[0].split()
        if len(words) < 3 or words[0] != "deb":
            continue
        options = {}
        rest = words[1:]
        if rest[0].startswith("["):
            closing = next((index for index, word in enumerate(rest) if word.endswith("]")), None)
            if closing is None:
                continue
            inner = " ".join(rest[:closing + 1]).strip("[]").split()
            options = dict(word.partition("=")[::2] for word in inner)
            rest = rest[closing + 1:]
        if len(rest) >= 2:
            found.append(Source((rest[0],), (rest[1],), tuple(rest[2:]), options.get("signed-by", "")))
    return found


def parse_sources(text):
    """Entries of a deb822 style file (``*.sources``)."""
    found = []
    for paragraph in _paragraphs(text):
        if "deb" not in paragraph.get("types", "").split() or paragraph.get("enabled", "yes").lower() == "no":
            continue
        found.append(Source(tuple(paragraph.get("uris", "").split()), tuple(paragraph.get("suites", "").split()),
                            tuple(paragraph.get("components", "").split()), paragraph.get("signed-by", "")))
    return found


def _paragraphs(text):
    fields, name, found = {}, None, []
    for line in text.splitlines() + [""]:
        if not line.strip():
            if fields:
                found.append(fields)
            fields, name = {}, None
        elif line.startswith("#"):
            continue
        elif line[0] in " \t":
            if name:
                fields[name] += "\n" + line.strip()
        else:
            name, _colon, value = line.partition(":")
            name = name.strip().lower()
            fields[name] = value.strip()
    return found


def debian_archives(sources, codename, suite):
    """The archives of ``suite``, derived from the entries of a host that runs Debian ``codename``.

    Returns a list of (uri, suite, components), the main archive first, then its updates and security archives as far as the host
    has them. Raises AptError where the host has no main archive.
    """
    main, others = [], []
    for source in sources:
        for uri in source.uris:
            for name in source.suites:
                if "main" not in source.components:
                    continue
                if name == codename:
                    main.append((uri.rstrip("/"), suite, "main"))
                elif name in (codename + "-updates", codename + "-security"):
                    others.append((uri.rstrip("/"), suite + name[len(codename):], "main"))
    if not main:
        raise AptError("image_debian_mirror is empty and this host's apt sources hold no Debian archive (suite {0!r}, component main): "
                       "set it to the URL of a Debian mirror".format(codename))
    found = []
    for item in main[:1] + others:
        if item not in found:
            found.append(item)
    return found


def sources_text(archives, keyring=DEBIAN_KEYRING):
    """A deb822 file for the archives."""
    return "\n".join("Types: deb\nURIs: {0}\nSuites: {1}\nComponents: {2}\nSigned-By: {3}\n".format(uri, suite, components, keyring)
                     for uri, suite, components in archives)

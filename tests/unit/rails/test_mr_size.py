# Copyright (c) 2026, the infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.infera.serving.plugins.filter import mooncake as filters
from ansible_collections.infera.serving.plugins.module_utils import mooncake_mr
from ansible_collections.infera.serving.plugins.test import mooncake as tests

GIB = 2 ** 30


@pytest.mark.parametrize("value, size", [
    ("1GiB", GIB), (" 1 GiB ", GIB), ("1024MiB", GIB), ("1048576KiB", GIB), ("1073741824", GIB), ("1073741824B", GIB), (GIB, GIB),
    ("512MiB", GIB // 2), (268435456, GIB // 4)])
def test_good_on_ionic(value, size):
    assert mooncake_mr.check(value) == (size, []) and filters.mooncake_mr_size(value) == size and tests.valid_mr_size(value)


@pytest.mark.parametrize("value, message", [
    (2 * GIB, "MC_MAX_MR_SIZE 2147483648 is above 1073741824: ionic rejects a 2 GiB dma-buf registration that starts 1 GiB-aligned (PD note 8)"),
    (GIB + 1, "MC_MAX_MR_SIZE 1073741825 is above 1073741824: ionic rejects a 2 GiB dma-buf registration that starts 1 GiB-aligned (PD note 8)"),
    (1000000000, "MC_MAX_MR_SIZE 1000000000 is not a multiple of 2097152"),
    (1, "MC_MAX_MR_SIZE 1 is not a multiple of 2097152"),
    (0, "MC_MAX_MR_SIZE 0 is not above 0: Mooncake ignores 0 and reads a negative number as a huge one"),
    ("-1", "MC_MAX_MR_SIZE -1 is not above 0: Mooncake ignores 0 and reads a negative number as a huge one"),
    ("1G", "MC_MAX_MR_SIZE '1G' is ambiguous: write bytes, or KiB, MiB or GiB (such as '1GiB')"),
    ("64M", "MC_MAX_MR_SIZE '64M' is ambiguous: write bytes, or KiB, MiB or GiB (such as '64MiB')"),
    ("1gib", "MC_MAX_MR_SIZE '1gib' is ambiguous: write bytes, or KiB, MiB or GiB (such as '1GiB')"),
    ("1e9", "MC_MAX_MR_SIZE '1e9' is no size: write whole bytes, or a whole number with KiB, MiB or GiB"),
    ("0x40000000", "MC_MAX_MR_SIZE '0x40000000' is no size: write whole bytes, or a whole number with KiB, MiB or GiB"),
    ("0.5GiB", "MC_MAX_MR_SIZE '0.5GiB' is no size: write whole bytes, or a whole number with KiB, MiB or GiB"),
    (1e9, "MC_MAX_MR_SIZE 1000000000.0 is a float: write whole bytes, or a number with KiB, MiB or GiB"),
    (True, "MC_MAX_MR_SIZE True is no size: write bytes, or a number with KiB, MiB or GiB"),
])
def test_bad_on_ionic(value, message):
    with pytest.raises(mooncake_mr.MrSizeError) as caught:
        mooncake_mr.check(value)
    assert str(caught.value) == message
    with pytest.raises(AnsibleFilterError, match="mooncake_mr_size: "):
        filters.mooncake_mr_size(value)
    assert not tests.valid_mr_size(value)


@pytest.mark.parametrize("value", [None, ""])
def test_ionic_needs_one_with_dmabuf_and_wants_one_with_peermem(value):
    with pytest.raises(AnsibleFilterError, match="MC_MAX_MR_SIZE is not set: ionic advertises 2 GiB"):
        filters.mooncake_mr_size(value)
    assert filters.mooncake_mr_size(value, gpu_mr_path="peermem") is None
    assert "is not set" in mooncake_mr.check(None, gpu_mr_path="peermem")[1][0]


def test_warnings_on_ionic():
    assert ["below 67108864" in text for text in mooncake_mr.check("32MiB")[1]] == [True]
    assert ["not a power of two" in text for text in mooncake_mr.check("768MiB")[1]] == [True]


def test_other_drivers():
    assert mooncake_mr.check(None, "other") == (None, [])
    assert mooncake_mr.check(4096, "other") == (4096, []) and mooncake_mr.check("4GiB", "other") == (4 * GIB, [])
    assert mooncake_mr.check("4GiB", "other", device_max=2 * GIB)[1] == ["MC_MAX_MR_SIZE 4294967296 will be clamped to the device's 2147483648"]
    for value, text in ((5000, "is not a multiple of 4096"), (2 ** 63, "is above 9223372036854775807")):
        with pytest.raises(mooncake_mr.MrSizeError, match=text):
            mooncake_mr.check(value, "other")


def test_tcp_ignores_it():
    assert mooncake_mr.check("1GiB", "tcp") == (GIB, ["MC_MAX_MR_SIZE 1073741824 has no effect on TCP"])
    assert mooncake_mr.check(None, "tcp") == (None, [])


@pytest.mark.parametrize("text, message", [
    ("1GiB", "'1GiB' must be rendered as bytes; Mooncake reads it as 1"),
    ("1e9", "'1e9' must be rendered as bytes; Mooncake reads it as 1"),
    ("-1", "'-1' must be rendered as bytes; Mooncake reads it as 18446744073709551615"),
    ("1073741824x", "'1073741824x' must be rendered as bytes; Mooncake reads it as 1073741824"),
    ("0x40000000", "'0x40000000' must be rendered as bytes; Mooncake ignores it and keeps its default"),
    ("abc", "'abc' must be rendered as bytes; Mooncake ignores it and keeps its default"),
])
def test_what_mooncake_would_read(text, message):
    with pytest.raises(mooncake_mr.MrSizeError) as caught:
        mooncake_mr.check_raw(text)
    assert str(caught.value) == message


def test_unknown_driver():
    with pytest.raises(AnsibleFilterError, match="driver='mlx5': one of ionic, other, tcp is needed"):
        filters.mooncake_mr_size("1GiB", driver="mlx5")

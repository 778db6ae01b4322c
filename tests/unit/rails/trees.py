#!/usr/bin/env python3
# Copyright (c) 2026, the infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Builds fake /sys, /proc, /dev and /boot trees of GPU machines, for tests and for the molecule hosts.

As a command: ``trees.py TREE FOLDER [HOST_NUMBER]`` makes FOLDER/{sys,proc,dev,boot}. Standard library only.
"""
from __future__ import annotations

import ipaddress
import os
import sys

RAILS = 8
V1, V2 = "IB/RoCE v1", "RoCE v2"
ZERO = "0000:0000:0000:0000:0000:0000:0000:0000"
IONIC, MELLANOX = ("0x1dd8", "0x1002"), ("0x15b3", "0x1021")


def mapped(ipv4):
    """The GID that maps an IPv4 address, as sysfs prints it."""
    return ipaddress.IPv6Address("::ffff:" + ipv4).exploded


def fe80(number):
    return ipaddress.IPv6Address((0xFE80 << 112) + 0x690A81FFFE000000 + number).exploded


class Tree:
    """One machine. Paths of PCI devices are given as lists: host bridge, ports, function."""

    def __init__(self, root, host=1):
        self.root, self.host = str(root), host
        self.nodes = self.uverbs = 0
        for name in ("sys", "proc", "dev", "boot"):
            os.makedirs(os.path.join(self.root, name), exist_ok=True)
        self.routes = ["Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT"]

    def write(self, path, text):
        full = os.path.join(self.root, path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, "w") as handle:
            handle.write("%s\n" % text)

    def link(self, path, target):
        full = os.path.join(self.root, path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        os.symlink(os.path.relpath(os.path.join(self.root, target), os.path.dirname(full)), full)

    def function(self, under, vendor, device, numa, driver):
        path = "sys/devices/" + "/".join(under)
        self.write(path + "/vendor", vendor)
        self.write(path + "/device", device)
        if numa is not None:
            self.write(path + "/numa_node", numa)
        self.write("sys/bus/pci/drivers/%s/module" % driver, "")
        self.link(path + "/driver", "sys/bus/pci/drivers/" + driver)
        self.link("sys/bus/pci/devices/" + under[-1], path)
        return path

    def cpu(self):
        folder = "sys/class/kfd/kfd/topology/nodes/%d" % self.nodes
        self.write(folder + "/gpu_id", 0)
        self.write(folder + "/properties", "cpu_cores_count 96\nsimd_count 0")
        self.nodes += 1

    def gpu(self, under, numa, vram_used=300 * 2 ** 20, partitions=1):
        """A GPU; with partitions (CPX) it is several KFD nodes with one address."""
        path = self.function(under, "0x1002", "0x75a3", numa, "amdgpu")
        self.write(path + "/mem_info_vram_total", 288 * 2 ** 30)
        self.write(path + "/mem_info_vram_used", vram_used)
        domain, bus, rest = under[-1].split(":")
        device, function = rest.split(".")
        location = int(bus, 16) << 8 | int(device, 16) << 3 | int(function)
        for _number in range(partitions):
            folder = "sys/class/kfd/kfd/topology/nodes/%d" % self.nodes
            self.write(folder + "/gpu_id", 50000 + self.nodes)
            self.write(folder + "/properties", "cpu_cores_count 0\nsimd_count 1024\nlocation_id %d\ndomain %d\ndrm_render_minor %d" % (
                location, int(domain, 16), 128 + self.nodes))
            self.write("dev/dri/renderD%d" % (128 + self.nodes), "")
            self.nodes += 1
        self.write("dev/kfd", "")
        return path

    def nic(self, name, under, numa, gids, ids=IONIC, netdev=None, mtu=9000, state="4: ACTIVE", rate="400 Gb/sec (4X NDR)", abi=1, driver="ionic",
            ports=None, physfn=None, link_layer="Ethernet", verbs=True, pci_netdev=None):
        """An RDMA device; ``gids`` is a list of (gid, type, netdev) by slot, None for an empty one."""
        path = self.function(under, ids[0], ids[1], numa, driver)
        base = "%s/infiniband/%s" % (path, name)
        for port, port_state in sorted((ports or {1: state}).items()):
            here = "%s/ports/%d" % (base, port)
            self.write(here + "/state", port_state)
            self.write(here + "/phys_state", "5: LinkUp" if "ACTIVE" in port_state else "3: Disabled")
            self.write(here + "/rate", rate)
            self.write(here + "/link_layer", link_layer)
            for slot, entry in enumerate(gids if port == 1 else []):
                self.write("%s/gids/%d" % (here, slot), entry[0] if entry else ZERO)
                if entry:
                    self.write("%s/gid_attrs/types/%d" % (here, slot), entry[1])
                    if entry[2]:
                        self.write("%s/gid_attrs/ndevs/%d" % (here, slot), entry[2])
        self.link(base + "/device", path)
        self.link("sys/class/infiniband/" + name, base)
        if physfn:
            self.link(path + "/physfn", physfn)
        if verbs:
            folder = "sys/class/infiniband_verbs/uverbs%d" % self.uverbs
            self.write(folder + "/ibdev", name)
            self.write(folder + "/abi_version", abi)
            self.write("dev/infiniband/uverbs%d" % self.uverbs, "")
            self.uverbs += 1
        if netdev:
            self.write("%s/net/%s/mtu" % (path, pci_netdev or netdev), mtu)
            self.write("%s/net/%s/dev_port" % (path, pci_netdev or netdev), 0)
            self.write("sys/class/net/%s/mtu" % netdev, mtu)
        return path

    def route(self, netdev, network):
        net = ipaddress.ip_network(network)
        words = ["%08X" % int.from_bytes(address.packed, "little") for address in (net.network_address, net.netmask)]
        self.routes.append("%s\t%s\t00000000\t0001\t0\t0\t0\t%s\t0\t0\t0" % (netdev, words[0], words[1]))

    def kernel(self, options=("CONFIG_PCI_P2PDMA", "CONFIG_DMABUF_MOVE_NOTIFY"), release="6.8.0-test", modules=("ionic_rdma", "amdgpu")):
        self.write("proc/sys/kernel/osrelease", release)
        self.write("boot/config-" + release, "\n".join(name + "=y" for name in options))
        self.write("proc/modules", "\n".join("%s 16384 0 - Live 0x0" % name for name in modules))
        for name in modules:
            self.write("sys/module/%s/refcnt" % name, 0)
        self.write("sys/module/amdgpu/version", "6.16.13")

    def done(self):
        self.write("proc/net/route", "\n".join(self.routes))
        return self


def slots(index):
    """Return ``(NIC path, GPU path)`` of one switch: root port, switch, then the NIC, or the GPU behind its own bridge."""
    bus = 0x05 + 0x10 * index
    root = ["pci0000:%02x" % bus, "0000:%02x:01.0" % bus, "0000:%02x:00.0" % (bus + 1)]
    nic = root + ["0000:%02x:00.0" % (bus + 2), "0000:%02x:00.0" % (bus + 3)]
    gpu = root + ["0000:%02x:01.0" % (bus + 2), "0000:%02x:00.0" % (bus + 4), "0000:%02x:00.0" % (bus + 5), "0000:%02x:00.0" % (bus + 6)]
    return nic, gpu


def healthy(tree, gpus=range(RAILS), gid_slot=None, skip=(), numa_of_nic=None, names=None, **options):
    """The ordinary machine: two sockets, eight switches, each with a GPU and a rail; GID 0 link-local, GID 1 IPv4."""
    tree.cpu()
    tree.cpu()
    for index in range(RAILS):
        nic, gpu = slots(index)
        numa = index // 4
        netdev = "enp%ds0" % (0x05 + 0x10 * index + 3)
        if index in gpus:
            tree.gpu(gpu, numa)
        if index not in skip:
            address = "10.%d.0.%d" % (100 + index, tree.host)
            slot = (gid_slot or {}).get(index, 1)
            gids = [(fe80(index), V2, netdev)] + [None] * 3
            gids[slot] = (mapped(address), V2, netdev)
            name = (names or {}).get(index, "ionic_%d" % index)
            settings = dict({"netdev": netdev}, **options.get("nic", {}))
            settings.update(options.get("nics", {}).get(index, {}))
            tree.nic(name, nic, numa if numa_of_nic is None else numa_of_nic(index), settings.pop("gids", gids), **settings)
            tree.route(netdev, "10.%d.0.0/24" % (100 + index))
    return tree


def no_gid(index):
    netdev = "enp%ds0" % (0x05 + 0x10 * index + 3)
    return [(fe80(index), V2, netdev), (mapped("10.%d.0.1" % (100 + index)), V1, netdev)]


def management(tree, **changes):
    gids = [(fe80(99), V1, "ens1"), (fe80(99), V2, "ens1"), (mapped("10.9.0.%d" % tree.host), V1, "ens1"), (mapped("10.9.0.%d" % tree.host), V2, "ens1")]
    settings = {"ids": MELLANOX, "netdev": "ens1", "mtu": 1500, "rate": "100 Gb/sec (4X EDR)", "driver": "mlx5_core"}
    settings.update(changes)
    tree.nic("mlx5_0", ["pci0000:e0", "0000:e0:01.0", "0000:e1:00.0"], 1, gids, **settings)


def tree1(tree):
    healthy(tree)


def tree2(tree):
    healthy(tree, nics={3: {"state": "1: DOWN"}})


def tree3(tree):
    healthy(tree, nics={5: {"gids": no_gid(5)}})


def tree4(tree):
    healthy(tree, numa_of_nic=lambda index: 1 - index // 4)


def tree5(tree):
    healthy(tree)
    management(tree)


def tree6(tree):
    healthy(tree, gpus=range(4, 8))


def tree7(tree):
    healthy(tree, gid_slot={2: 3, 6: 3})


def tree8(tree):
    healthy(tree, skip=range(RAILS))


def vfs(tree):
    """Two virtual functions beside rail 0."""
    healthy(tree)
    nic, _gpu = slots(0)
    physfn = "sys/devices/" + "/".join(nic)
    tree.write(physfn + "/sriov_numvfs", 2)
    for number in (1, 2):
        tree.nic("ionic_%d" % (7 + number), nic[:-1] + ["0000:08:00.%d" % number], 0, [(fe80(50 + number), V2, None)], ids=("0x1dd8", "0x1003"), physfn=physfn)


def vlan(tree):
    """The routable GID of each rail sits on a VLAN device with an MTU of its own."""
    nics = {}
    for index in range(RAILS):
        netdev = "enp%ds0" % (0x05 + 0x10 * index + 3)
        nics[index] = {"gids": [(fe80(index), V2, netdev), (mapped("10.%d.0.%d" % (100 + index, tree.host)), V2, netdev + ".100")]}
        tree.write("sys/class/net/%s.100/mtu" % netdev, 4200)
    healthy(tree, nics=nics)


def bond(tree):
    """Rail 0's GIDs belong to a bond."""
    healthy(tree, nics={0: {"gids": [(fe80(0), V2, "bond0"), (mapped("10.100.0.%d" % tree.host), V2, "bond0")], "netdev": "bond0", "pci_netdev": "enp8s0"}})


def slow(tree):
    """Rail 4 came up at half its rate, with another MTU."""
    healthy(tree, nics={4: {"rate": "200 Gb/sec (4X HDR)", "mtu": 1500}})


def numa_unknown(tree):
    healthy(tree, numa_of_nic=lambda index: -1)


def second_port(tree):
    """Rail 2 is cabled at its second port."""
    healthy(tree, nics={2: {"ports": {1: "1: DOWN", 2: "4: ACTIVE"}}})


def connectx(tree):
    """ConnectX-7 rails: GIDs at 0 to 3, v1 and v2 in turn."""
    nics = {}
    for index in range(RAILS):
        netdev, address = "enp%ds0" % (0x05 + 0x10 * index + 3), mapped("10.%d.0.%d" % (100 + index, tree.host))
        nics[index] = {"gids": [(fe80(index), V1, netdev), (fe80(index), V2, netdev), (address, V1, netdev), (address, V2, netdev)]}
    healthy(tree, names={index: "mlx5_%d" % index for index in range(RAILS)}, nic={"ids": MELLANOX, "driver": "mlx5_core"}, nics=nics)


def renamed(tree):
    """udev gave names that sort against the fabric's order, ten after nine as well."""
    healthy(tree, names={0: "ionic_9", 1: "ionic_10", 2: "ionic_7", 3: "rocep56s0", 4: "ionic_3", 5: "ionic_2", 6: "ionic_1", 7: "ionic_0"})


def no_netdev(tree):
    healthy(tree, nics={6: {"netdev": None, "gids": [(fe80(6), V2, None), (mapped("10.106.0.%d" % tree.host), V2, None)]}})


def no_uverbs(tree):
    healthy(tree, nics={7: {"verbs": False}})


def abi_mixed(tree):
    healthy(tree, nics={1: {"abi": 4}})


def ipv6(tree):
    """A fabric with global IPv6 addresses only."""
    nics = {}
    for index in range(RAILS):
        netdev = "enp%ds0" % (0x05 + 0x10 * index + 3)
        nics[index] = {"gids": [(fe80(index), V2, netdev), (ipaddress.IPv6Address("2001:db8:%x::%x" % (index, tree.host)).exploded, V2, netdev)]}
    healthy(tree, nics=nics)


def both_families(tree):
    """A global IPv6 GID before the IPv4 one: Mooncake would take the former."""
    nics = {}
    for index in range(RAILS):
        netdev = "enp%ds0" % (0x05 + 0x10 * index + 3)
        nics[index] = {"gids": [(fe80(index), V2, netdev), (ipaddress.IPv6Address("2001:db8:%x::1" % index).exploded, V2, netdev),
                                (mapped("10.%d.0.%d" % (100 + index, tree.host)), V2, netdev)]}
    healthy(tree, nics=nics)


def two_indexes(tree):
    """Every rail is routable at 3, half of them at 1 too."""
    nics = {}
    for index in range(RAILS):
        netdev = "enp%ds0" % (0x05 + 0x10 * index + 3)
        first = (mapped("10.%d.1.%d" % (100 + index, tree.host)), V2, netdev) if index < 4 else None
        nics[index] = {"gids": [(fe80(index), V2, netdev), first, None, (mapped("10.%d.0.%d" % (100 + index, tree.host)), V2, netdev)]}
    healthy(tree, nics=nics)


def link_local_v4(tree):
    """Rail 1 never got its address: 169.254/16."""
    healthy(tree, nics={1: {"gids": [(fe80(1), V2, "enp24s0"), (mapped("169.254.3.4"), V2, "enp24s0")]}})


def cpus_between(tree):
    """KFD nodes: CPU, four GPUs, CPU, four GPUs; the numbers pass ten."""
    tree.cpu()
    for index in range(RAILS):
        if index == 4:
            tree.cpu()
        nic, gpu = slots(index)
        tree.gpu(gpu, index // 4)
        tree.nic("ionic_%d" % index, nic, index // 4, [(fe80(index), V2, None), (mapped("10.%d.0.%d" % (100 + index, tree.host)), V2, None)])


def reversed_gpus(tree):
    """KFD lists the GPUs against the PCI order."""
    tree.cpu()
    for index in reversed(range(RAILS)):
        tree.gpu(slots(index)[1], index // 4)
    for index in range(RAILS):
        tree.nic("ionic_%d" % index, slots(index)[0], index // 4, [(fe80(index), V2, None), (mapped("10.%d.0.%d" % (100 + index, tree.host)), V2, None)])


def deep(tree):
    """Two GPUs and two rails below one root port, each couple behind a deeper switch; names cross the couples."""
    tree.cpu()
    top = ["pci0000:40", "0000:40:01.0", "0000:41:00.0"]
    for index in (0, 1):
        inner = top + ["0000:42:%02x.0" % index, "0000:%02x:00.0" % (0x43 + 8 * index)]
        tree.gpu(inner + ["0000:%02x:00.0" % (0x44 + 8 * index), "0000:%02x:00.0" % (0x45 + 8 * index)], 0)
        tree.nic("ionic_%d" % (1 - index), inner + ["0000:%02x:01.0" % (0x44 + 8 * index), "0000:%02x:00.0" % (0x46 + 8 * index)], 0,
                 [(fe80(index), V2, None), (mapped("10.%d.0.1" % (100 + index)), V2, None)])


def shared_switch(tree):
    """Four rails for eight GPUs: two GPUs below each switch."""
    tree.cpu()
    for index in range(4):
        nic, gpu = slots(index)
        tree.gpu(gpu, index // 2)
        tree.gpu(gpu[:-4] + ["0000:%02x:02.0" % (0x07 + 0x10 * index), "0000:%02x:00.0" % (0x0c + 0x10 * index)], index // 2)
        tree.nic("ionic_%d" % index, nic, index // 2, [(fe80(index), V2, None), (mapped("10.%d.0.1" % (100 + index)), V2, None)])


def host_bridge(tree):
    """A GPU and a rail on the same host bridge, below different root ports; a second rail on the other socket."""
    tree.cpu()
    tree.gpu(["pci0000:40", "0000:40:01.0", "0000:41:00.0"], 0)
    tree.nic("ionic_0", ["pci0000:80", "0000:80:01.0", "0000:81:00.0"], 0, [(fe80(0), V2, None), (mapped("10.100.0.1"), V2, None)])
    tree.nic("ionic_1", ["pci0000:40", "0000:40:02.0", "0000:42:00.0"], 1, [(fe80(1), V2, None), (mapped("10.101.0.1"), V2, None)])


def partitions(tree):
    """CPX: each GPU is eight KFD nodes with one PCI address."""
    tree.cpu()
    for index in range(2):
        nic, gpu = slots(index)
        tree.gpu(gpu, 0, partitions=8)
        tree.nic("ionic_%d" % index, nic, 0, [(fe80(index), V2, None), (mapped("10.%d.0.1" % (100 + index)), V2, None)])


def domains(tree):
    """PCI domains above 0, as large servers have."""
    tree.cpu()
    for index in range(2):
        base = ["pci%04x:00" % (index + 1), "%04x:00:01.0" % (index + 1), "%04x:01:00.0" % (index + 1)]
        tree.gpu(base + ["%04x:02:00.0" % (index + 1), "%04x:03:00.0" % (index + 1)], index)
        tree.nic("ionic_%d" % index, base + ["%04x:02:01.0" % (index + 1), "%04x:04:00.0" % (index + 1)], index,
                 [(fe80(index), V2, None), (mapped("10.%d.0.1" % (100 + index)), V2, None)])


def soft_roce(tree):
    """A device without PCI (Soft-RoCE) beside the rails."""
    healthy(tree)
    base = "sys/devices/virtual/infiniband/rxe0/ports/1"
    for name, text in (("state", "4: ACTIVE"), ("rate", "100 Gb/sec (4X EDR)"), ("link_layer", "Ethernet"), ("gids/0", fe80(77)), ("gid_attrs/types/0", V2)):
        tree.write("%s/%s" % (base, name), text)
    tree.link("sys/class/infiniband/rxe0", "sys/devices/virtual/infiniband/rxe0")


def peermem(tree):
    """A peer memory module is loaded."""
    healthy(tree)
    tree.write("sys/module/ib_peer_mem/refcnt", 0)
    tree.write("sys/kernel/mm/memory_peers/amdkfd/version", "1")


def no_p2pdma(tree):
    healthy(tree)


def other_subnet(tree):
    """Rails as in tree 1, but rail 2 and 3 are cabled the other way round."""
    nics = {}
    for index, subnet in ((2, 103), (3, 102)):
        netdev = "enp%ds0" % (0x05 + 0x10 * index + 3)
        nics[index] = {"gids": [(fe80(index), V2, netdev), (mapped("10.%d.0.%d" % (subnet, tree.host)), V2, netdev)]}
        tree.route(netdev, "10.%d.0.0/24" % subnet)
    healthy(tree, nics=nics)


def busy(tree):
    """GPU 2 holds 200 GiB for a process that still runs, GPU 5 for one that is gone."""
    healthy(tree)
    for index, gib in ((2, 200), (5, 120)):
        tree.write("sys/devices/%s/mem_info_vram_used" % "/".join(slots(index)[1]), gib * 2 ** 30)
    tree.write("proc/4242/comm", "python3")
    tree.write("proc/4242/cmdline", "python3\0train.py")
    tree.write("sys/class/kfd/kfd/proc/4242/vram_50004", 200 * 2 ** 30)


def faulted(tree):
    """GPU 5 took a memory access fault: a kernel line, memory that nobody alive holds, a stale KFD process."""
    healthy(tree)
    bdf = slots(5)[1][-1]
    tree.write("sys/devices/%s/mem_info_vram_used" % "/".join(slots(5)[1]), 250 * 2 ** 30)
    tree.write("sys/class/kfd/kfd/proc/31337/vram_50007", 250 * 2 ** 30)
    tree.write("kernel.log", "\n".join([
        "[ 8123.4] amdgpu %s: amdgpu: [gfxhub0] page fault (src_id:0 ring:24 vmid:8 pasid:32773)" % bdf,
        "[ 8123.5] amdgpu %s: amdgpu:   in page starting at address 0x00007f1200000000 from IH client 0x1b (UTCL2)" % bdf,
        "[ 8140.0] amdgpu: Failed to evict process queues",
    ]))


TREES = {name: value for name, value in list(globals().items()) if callable(value) and getattr(value, "__code__", None)
         and value.__code__.co_varnames[:value.__code__.co_argcount] == ("tree",) and name not in ("management",)}


def build(name, root, host=1):
    """Make one of TREES below ``root``; returns the Tree."""
    tree = Tree(root, host)
    TREES[name](tree)
    if name == "no_p2pdma":
        tree.kernel(options=("CONFIG_PCI_P2PDMA",))
    else:
        tree.kernel()
    return tree.done()


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4) or sys.argv[1] not in TREES:
        sys.exit("usage: trees.py TREE FOLDER [HOST_NUMBER]\ntrees: %s" % ", ".join(TREES))
    build(sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 1)

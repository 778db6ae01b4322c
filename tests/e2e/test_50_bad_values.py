"""Bad values: one line that names the variable, before anything is touched."""
import os
import pathlib
import socket

import pytest
from e2e import support

CASES = {
    "flavour": (("-e", "infera_flavour=cuda"), "infera_flavour"),
    "weight negative": (("-e", "DECODE_REQUEST_WEIGHT=-1"), "decode_request_weight"),
    "weight NaN": (("-e", "DECODE_REQUEST_WEIGHT=nan"), "decode_request_weight"),
    "weight text": (("-e", "DECODE_REQUEST_WEIGHT=much"), "decode_request_weight"),
    "weight without demand": (("-e", "DECODE_REQUEST_WEIGHT=1000", "-e", "decode_input_demand=off"), "decode_input_demand"),
    "model path": (("-e", "infera_model_path=/no/such/model", "-e", "{\"infera_model_make\": {}}"), "infera_model_path"),
    "memory": (("-e", "preflight_min_memory_gb=100000"), "preflight_min_memory_gb"),
    "disk": (("-e", "preflight_min_disk_gb=1000000"), "preflight_min_disk_gb"),
    "system": (("-e", "{\"preflight_supported_systems\": [\"Plan9\"]}"), "preflight_supported_systems"),
}


@pytest.mark.parametrize("name", CASES)
def test_refused_before_anything_is_touched(deployment, name):
    argv, variable = CASES[name]
    before, record = deployment.identities(), deployment.record
    code, output = support.play("site.yml", *argv, check=False)
    assert code != 0
    assert any(variable in line for line in output.splitlines()), output[-3000:]
    assert support.changed(output) == 0
    assert deployment.identities() == before and deployment.record == record


def test_a_port_of_someone_else(deployment):
    before = deployment.identities()
    with socket.socket() as taken:
        # Below the range that the kernel gives to outgoing connections.
        for port in range(20000, 20100):
            try:
                taken.bind(("127.0.0.1", port))
                break
            except OSError:
                continue
        taken.listen()
        code, output = support.play("site.yml", "-e", f"router_port={port}", check=False)
    assert code != 0 and any("router_port" in line and str(port) in line and str(os.getpid()) in line for line in output.splitlines()), output[-3000:]
    assert support.changed(output) == 0 and deployment.identities() == before


def test_a_port_that_any_connection_may_take(deployment):
    low = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    before = deployment.identities()
    code, output = support.play("site.yml", "-e", f"router_port={low + 7}", check=False)
    assert code != 0 and any("router_port" in line and "ephemeral" in line for line in output.splitlines()), output[-3000:]
    assert support.changed(output) == 0 and deployment.identities() == before

"""What the engines' Mooncake really did, read from the running deployment: TCP because it was asked for, and an engine that splits registrations."""
import json

import pytest
from e2e import support


def module(name, arguments):
    """Run one of the collection's modules on this machine; returns its result."""
    code, output = support.run(".venv/bin/ansible", "localhost", "-i", "inventories/local", "-m", f"infera.serving.{name}", "-a", arguments,
                               check=False, env={"ANSIBLE_CALLBACK_RESULT_FORMAT": "json"})
    # An error is told before the result.
    return code, json.loads(output[output.index("{", output.index("localhost |")):output.rindex("}") + 1])


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_the_log_tells_the_transport(deployment, role):
    name = deployment.names(role)[0]
    code, found = module("mooncake_log_facts", f"container={name} expect_transport=tcp")
    assert code == 0 and found["transport"] == "tcp" and found["tcp_forced"] and not found["tcp_fallback"], found
    code, found = module("mooncake_log_facts", f"container={name} expect_transport=rdma")
    assert code != 0 and "the engine runs over TCP, not RDMA (MC_FORCE_TCP is set)" in found["msg"], found


def test_the_engine_in_the_container(deployment):
    code, found = module("mooncake_engine_info", f"container={deployment.names('decode')[0]} require=mr_split,no_truncation")
    assert code == 0 and found["capabilities"]["mr_split"] and not found["capabilities"]["dmabuf"], found


def test_the_fabric_is_measured_with_the_engine_image(deployment):
    before = deployment.identities()
    _code, output = support.play("playbooks/fabric.yml", "-e", "mooncake_fabric_bytes=16777216")
    row, = [line.split() for line in output.splitlines() if line.split()[2:3] == ["tcp"] and "localhost" in line]
    assert float(row[3]) > 0 and row[4] == "True", row
    assert deployment.identities() == before, "its containers are gone"

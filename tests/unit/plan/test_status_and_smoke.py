"""What status shows and how smoke reads answers: pages in, rows out."""
from ansible_collections.infera.serving.plugins.filter import present
from ansible_collections.infera.serving.plugins.module_utils import host_ports, smoke_client, status_table

RECORD = {
    "router_url": "http://10.0.0.1:8000", "settings": {"etcd_endpoints": ["http://10.0.0.1:2379"]},
    "hosts": [{"name": "a", "address": "10.0.0.1"}, {"name": "b", "address": "10.0.0.2"}],
    "containers": [
        {"name": "x-etcd-0", "role": "etcd", "host": "a", "ports": {"client": 2379}},
        {"name": "x-prefill-0", "role": "prefill", "host": "a", "ports": {"http": 31000}, "ranks": 1},
        {"name": "x-decode-0", "role": "decode", "host": "b", "ports": {"http": 31000}, "ranks": 8},
        {"name": "x-router-0", "role": "router", "host": "a", "ports": {"http": 8000}}],
}


def rows(pages):
    return {row["container"]: row for row in status_table.rows(RECORD, lambda url: pages.get(url, (None, "Connection refused")))}


def test_one_row_per_container_and_per_stranger():
    workers = [{"worker_id": "10.0.0.2:31000", "status": "draining", "dp_size": 4, "breaker": "open"}, {"worker_id": "10.0.0.9:31000", "disagg_mode": "decode"}]
    found = rows({
        "http://10.0.0.1:8000/v1/workers": (200, {"workers": workers}), "http://10.0.0.1:2379/health": (200, {"health": "true"}),
        "http://10.0.0.2:31000/health": (503, {}), "http://10.0.0.1:8000/ready": (503, {"reason": "no servable pool"})})
    assert found["x-etcd-0"]["health"] == "ok" and found["x-router-0"]["health"] == "HTTP 503: no servable pool"
    assert found["x-prefill-0"]["registered"] == "no" and found["x-prefill-0"]["health"].startswith("away: Connection refused")
    assert found["x-decode-0"]["registered"] == "draining (4 ranks)" and found["x-decode-0"]["breaker"] == "open"
    assert found["(not of this deployment)"]["endpoint"] == "10.0.0.9:31000"


def test_a_router_that_is_away_is_no_lost_worker():
    assert rows({})["x-decode-0"]["registered"] == "router away"


def test_a_stream_is_read_to_its_end():
    lines = ['data: {"choices": [{"delta": {"content": "a"}}]}', "", 'data: {"choices": [{"delta": {"content": "b"}}]}',
             'data: {"choices": [], "usage": {"completion_tokens": 2}}', "data: [DONE]"]
    got = smoke_client.read_stream(lines)
    assert (got["text"], got["usage"], got["done"], got["errors"]) == ("ab", [{"completion_tokens": 2}], True, [])
    assert not smoke_client.read_stream(lines[:-1])["done"]
    assert smoke_client.read_stream(['data: {"error": {"message": "x", "code": 500}}'])["errors"]


def test_metrics_are_read_with_their_labels():
    page = '# HELP a b\na{x="1",y="q\\"z"} 2\nb 3.5\nc{d="e"} NaN\nnonsense\n'
    found = smoke_client.parse_metrics(page)
    assert found[0] == ("a", {"x": "1", "y": 'q\\"z'}, 2.0) and found[1] == ("b", {}, 3.5)


def test_a_table_lines_up():
    assert present.table([{"a": 1, "b": None}, {"a": "long one", "b": "x y"}], ["a", "b"]) == ["a         b", "1         -", "long one  x y"]


def test_listeners_and_ranges_are_read_from_proc(tmp_path):
    (tmp_path / "net").mkdir()
    head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
    rows_of = ["   0: 0100007F:1F40 00000000:0000 0A 0:0 0:0 0 0 0 4242 1\n", "   1: 0100007F:1F41 00000000:0000 01 0:0 0:0 0 0 0 4243 1\n"]
    (tmp_path / "net" / "tcp").write_text(head + "".join(rows_of))

    process = tmp_path / "77"
    (process / "fd").mkdir(parents=True)
    (process / "fd" / "3").symlink_to("socket:[4242]")
    (process / "cmdline").write_bytes(b"nginx\0-g\0")
    (process / "cgroup").write_text("0::/system.slice/docker-" + "a" * 64 + ".scope\n")
    (tmp_path / "sys" / "net" / "ipv4").mkdir(parents=True)
    (tmp_path / "sys" / "net" / "ipv4" / "ip_local_port_range").write_text("32768\t60999\n")
    (tmp_path / "sys" / "net" / "ipv4" / "ip_local_reserved_ports").write_text("35000-35002,40000\n")
    proc = str(tmp_path)
    assert host_ports.listeners([8000, 8001], proc) == {8000: [{"pid": 77, "command": "nginx -g", "container": "a" * 64}]}
    assert host_ports.ephemeral_range(proc) == (32768, 60999) and host_ports.reserved_ports(proc) == {35000, 35001, 35002, 40000}

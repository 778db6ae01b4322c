"""Wrong variables make no plan: one line each, which names the option, the value and the fix."""
import copy

import pytest
from ansible_collections.infera.serving.plugins.module_utils import plan

PD = {
    "infera_flavour": "rocm", "infera_shape": "own", "infera_model_path": "/models/m", "infera_model_layers": 78,
    "prefill_workers": 2, "prefill_gpus": 4, "decode_workers": 1, "decode_gpus": 8, "engine_max_running_requests": 256,
    "decode_input_demand": "on", "decode_request_weight": 0,
    "groups": {"prefill": ["a"], "decode": ["b"], "router": ["a"], "etcd": ["a"], "mixed": []}, "addresses": {"a": "10.0.0.1", "b": "10.0.0.2"},
}
ONE_HOST = {"groups": dict(PD["groups"], decode=["a"])}


def built(**changes):
    return plan.build(dict(copy.deepcopy(PD), **changes))


def faults(**changes):
    with pytest.raises(plan.PlanError) as caught:
        built(**changes)
    return caught.value.faults


def test_the_base_of_these_tests_is_right():
    assert [c["name"] for c in built().containers] == ["own-etcd-0", "own-prefill-0", "own-prefill-1", "own-decode-0", "own-router-0"]


@pytest.mark.parametrize("changes, begins, holds", [
    ({"infera_flavour": "cuda"}, "infera_flavour: 'cuda'", "rocm, cpu"),
    ({"decode_request_weight": -1}, "decode_request_weight: -1", "at least 0"),
    ({"decode_request_weight": "nan"}, "decode_request_weight: 'nan'", "at least 0"),
    ({"decode_request_weight": "much"}, "decode_request_weight: 'much'", "is not a number"),
    ({"decode_request_weight": 5, "decode_input_demand": "off"}, "decode_request_weight: 5", "decode_input_demand"),
    ({"decode_request_weight": 5, "weight_override": "7"}, "decode_request_weight: 5", "DECODE_REQUEST_WEIGHT is '7'"),
    ({"prefill_gpus": 3}, "prefill_gpus: 3", "make them equal"),
    ({"decode_gpus": 6}, "decode_gpus: 6", "4 or 8"),
    ({"decode_attn_dp_size": 3}, "decode_attn_dp_size: 3", "divisor of 8"),
    ({"prefill_pp_layers": [20, 20, 20, 20]}, "prefill_pp_layers: 20,20,20,20", "78"),
    ({"prefill_pp_layers": [39, 39]}, "prefill_pp_layers: 39,39", "pp_size is 4"),
    ({"infera_model_layers": 80}, "prefill_pp_layers: 20,20,20,18", "80"),
    ({"prefill_workers": 3}, "GPUs of a: 12", "its 8 GPUs"),
    (dict(ONE_HOST), "GPUs of a: 16", "its 8 GPUs"),
    ({"prefill_gpu_ids": [[0, 1, 2, 3], [3, 4, 5, 6]]}, "prefill_gpu_ids: 3", "GPU 3 of a is used twice, by prefill-0 and prefill-1"),
    ({"prefill_gpu_ids": [[0, 1, 2, 3]]}, "prefill_gpu_ids: [[0, 1, 2, 3]]", "2 lists of 4"),
    ({"prefill_gpu_ids": [0, 1, 2, 3]}, "prefill_gpu_ids: [0, 1, 2, 3]", "list of lists"),
    ({"prefill_gpu_ids": [[0, 1, 2, 3], [5, 6, 7, 8]]}, "GPUs of a: 9", "prefill-1 5-8"),
    ({"prefill_gpu_ids": [[0, 1, 2, 3], [5, 6, 7, 8]]}, "GPUs of a: 9", "GPUs 0 to 7 in prefill_gpu_ids"),
    ({"engine_bootstrap_offset": 400}, "engine_port_base: 31000", "prefill-1 HTTP and prefill-0 bootstrap on a both want port 31400"),
    ({"prefill_ports": [31000, 31000]}, "prefill_ports: [31000, 31000]", "prefill-1 HTTP and prefill-0 HTTP on a both want port 31000"),
    ({"prefill_ports": [31000]}, "prefill_ports: [31000]", "2 ports from 1 to 65535"),
    ({"prefill_ports": "31000,x"}, "prefill_ports: ['31000', 'x']", "2 ports from 1 to 65535"),
    ({"prefill_port": 31000, "seen": {"prefill_port"}}, "prefill_port: not an option", "set prefill_ports, or engine_port_base"),
    ({"prefill_extra_args": ["--port", "1"]}, "prefill_extra_args: --port", "set prefill_ports, or engine_port_base instead"),
    ({"prefill_env": ["A=1"]}, "prefill_env: ['A=1']", "not a dictionary"),
    ({"engine_rails": ["ionic_0", "ionic_0"]}, "engine_rails: ['ionic_0', 'ionic_0']", "twice"),
    ({"decode_request_weight": None}, "decode_request_weight: empty", "remove the line for 0"),
    ({"prefill_workers": ""}, "prefill_workers: empty", "remove the line for 0"),
    ({"addresses": {"a": "10.0.0.1:22", "b": "10.0.0.2"}}, "ansible_host of a: '10.0.0.1:22'", "no port"),
    ({"addresses": {"a": "10.0.0.300", "b": "10.0.0.2"}}, "ansible_host of a: '10.0.0.300'", "neither an IP address nor a host name"),
    ({"addresses": {"a": "", "b": "10.0.0.2"}}, "infera_host_address of a: not set", "inventories/site/hosts.yml"),
    ({"machines": ["a", "node-b"]}, "group decode: 'b'", "mi355x has no such host, it has a, node-b"),
    ({"engine_port_step": 0}, "engine_port_step: 0", "at least 300"),
    ({"router_port": 2379}, "etcd_client_port: 2379", "both want port 2379"),
    ({"router_port": 16000}, "router_port: 16000", "Mooncake"),
    ({"router_port": 31235}, "router_port: 31235", "takes by itself"),
    ({"engine_port_base": 65000}, "engine_port_base: 65000", "prefill-1 bootstrap on a would need port 65700; lower"),
    ({"infera_model_path": ""}, "infera_model_path: not set", "infera_model_make"),
    ({"infera_model_path": "relative"}, "infera_model_path: 'relative'", "write an absolute path"),
    ({"infera_deployment_id": "Prod"}, "infera_deployment_id: 'Prod'", "small letters"),
    ({"engine_max_running_requests": None}, "prefill_max_running_requests: not set", "48"),
    ({"infera_planned_concurrency": 300}, "prefill_max_running_requests: 256", "at least 300"),
    ({"decode_workers": 0}, "decode_workers: 0", "pairs"),
    ({"prefill_workers": 0, "decode_workers": 0}, "prefill_workers: 0", "no worker at all"),
    ({"groups": dict(PD["groups"], etcd=["a", "b"])}, "group etcd: 'a, b'", "1, 3 or 5"),
    ({"groups": dict(PD["groups"], router=["a", "b"])}, "group router: 'a, b'", "exactly one"),
    ({"groups": dict(PD["groups"], decode=[])}, "group decode: not set", "inventory group decode"),
    ({"addresses": {"a": "10.0.0.1", "b": "10.0.0.1"}}, "infera_host_address of b: '10.0.0.1'", "its own"),
    ({"addresses": {"a": "127.0.0.1", "b": "10.0.0.1"}}, "infera_host_address of a: '127.0.0.1'", "loopback"),
    ({"addresses": {"a": "192.0.2.11", "b": "10.0.0.1"}}, "ansible_host: 'a=192.0.2.11'", "inventories/site/hosts.yml"),
    ({"seen": {"decode_gpu"}}, "decode_gpu", "did you mean decode_gpus"),
    ({"router_policy": "kv-aware", "router_tokenizer_path": "none"}, "router_tokenizer_path: 'none'", "kv-aware"),
    ({"etcd_tls_cert_file": "/c.pem"}, "etcd_tls_ca_file: not set", "together"),
    ({"etcd_user": "infera"}, "etcd_user: 'infera'", "etcd_password"),
])
def test_one_line_names_the_option_the_value_and_the_fix(changes, begins, holds):
    found = faults(**changes)
    mine = [line for line in found if line.startswith(begins) and holds in line]
    assert len(mine) == 1 and "\n" not in mine[0], found


def test_every_fault_is_told_at_once():
    found = faults(decode_request_weight="nan", infera_flavour="cuda", router_port="x")
    assert {line.split(":")[0] for line in found} == {"decode_request_weight", "infera_flavour", "router_port"}


def test_a_wrong_value_brings_no_further_faults():
    assert faults(prefill_workers="one") == ["prefill_workers: 'one': is not a whole number"]
    assert len(faults(engine_port_base=65500)) == 2  # one line per engine, not per port


def test_a_machine_outside_the_group_may_have_an_address_of_its_own():
    built(machines=["a", "c"], addressed={"b"})


def test_ports_may_be_chosen():
    made = built(prefill_ports=["32000", 33000])
    assert [c["ports"]["http"] for c in made.containers if c["role"] == "prefill"] == [32000, 33000]


@pytest.mark.parametrize("changes, reason", [
    ({"infera_shape": "2p1d", "prefill_workers": 1}, "its prefill workers are 2 of 4 GPUs"),
    ({"infera_shape": "1p1d", "prefill_workers": 1, "decode_gpus": 4}, "its decode workers are 1 of 8 GPUs"),
    (dict(infera_shape="1p_decode4", prefill_workers=1, decode_gpus=4, **ONE_HOST), "for example 1p_decode4_one_host"),
    ({"infera_shape": "mix", "prefill_workers": 1}, "its mixed workers are 1 of 4 GPUs"),
])
def test_a_published_name_stands_for_its_form_alone(changes, reason):
    found = faults(**changes)
    assert any(line.startswith("infera_shape:") and reason in line for line in found), found


def test_four_and_four_on_one_host_have_a_name_of_their_own():
    made = built(infera_shape="1p_decode4_one_host", prefill_workers=1, decode_gpus=4, **ONE_HOST)
    gpus = {c["name"]: c["gpus"] for c in made.containers if c.get("gpus")}
    assert gpus == {"1p-decode4-one-host-prefill-0": [0, 1, 2, 3], "1p-decode4-one-host-decode-0": [4, 5, 6, 7]}


def test_gpus_may_be_chosen():
    made = built(prefill_gpu_ids=[[4, 5, 6, 7], [0, 1, 2, 3]])
    assert [c["env"]["HIP_VISIBLE_DEVICES"] for c in made.containers if c["role"] == "prefill"] == ["4,5,6,7", "0,1,2,3"]


def test_the_forced_acceptance_reaches_the_decode():
    made = built(decode_simulate_acc_len="3.61")
    env = {c["role"]: c["env"] for c in made.containers}
    assert env["decode"]["SGLANG_SIMULATE_ACC_LEN"] == "3.61" and "SGLANG_SIMULATE_ACC_LEN" not in env["prefill"]


def test_no_secret_and_no_privilege_in_a_plan():
    made = built(etcd_user="infera", etcd_password="s3cret-word", etcd_tls_ca_file="/ca", etcd_tls_cert_file="/c", etcd_tls_key_file="/k")
    assert "s3cret-word" not in str(made.as_dict())
    engine = next(c for c in made.containers if c["role"] == "decode")
    assert engine["secrets"] == [{"path": "/var/lib/infera/own/etcd-password", "mode": "0600", "variable": "etcd_password"}]
    assert engine["command"][engine["command"].index("--etcd-endpoint") + 1] == "https://10.0.0.1:2379"
    assert "privileged" not in engine and engine["init"] and engine["ulimits"]["memlock"] == "-1:-1"


def test_the_host_library_is_mounted_where_the_image_looks():
    made = built(engine_libionic_file="/usr/lib/libionic.so.1")
    mount = next(m for c in made.containers if c["role"] == "decode" for m in c["mounts"] if m["source"].endswith("libionic.so.1"))
    # A mount of type bind fails on a missing source; Docker's short form would make a folder of it.
    assert mount == {"type": "bind", "source": "/usr/lib/libionic.so.1", "target": "/host-libionic/libionic.so", "read_only": True}

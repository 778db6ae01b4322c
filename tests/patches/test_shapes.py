"""Patches that meet more than one shape of source: the HiCache layouts, the radix gates, events that upstream already records."""
import json

import pytest

from patches import sources
from patches.conftest import apply, contents
from patches.test_contract import ALSO, ROUTED, change, refused, tree

MLA, DSA, OLD = "srt/mem_cache/pool_host/mla.py", "srt/mem_cache/pool_host/dsa.py", "srt/mem_cache/memory_pool_host.py"
HOOK = "srt/arg_groups/pd_disaggregation_hook.py"


def status(site, name, *options):
    done = apply(site, "--only", name, "--json", *options)
    return done.returncode, json.loads(done.stdout)["ledger"][0]


@pytest.mark.parametrize("version", ["0.5.18", "0.5.22", "0.5.23"])
def test_write_back_is_not_needed_where_indices_are_routed_per_pool(version, tmp_path):
    package = sources.unpacked("sglang", version) / "sglang"
    site = sources.copied(version, tmp_path, [file for file in (MLA, *ALSO["hicache-write-back"]) if (package / file).exists()])
    before = contents(site)
    code, entry = status(site, "hicache-write-back")
    assert code == 0 and entry["status"] == "not needed" and ROUTED in entry["evidence"]
    assert contents(site) == before


def move_indexer(site):
    """The layout before the indexer's pool had a file of its own."""
    text = (site / "sglang" / DSA).read_text()
    change(site, OLD, lambda old: old + "\n" + text[text.index("class DSAIndexerPoolHost"):])
    return text


def test_write_back_finds_the_indexer_in_its_old_place(tmp_path):
    site = tree("hicache-write-back", "0.5.22", tmp_path)
    move_indexer(site)
    (site / "sglang" / DSA).unlink()
    assert status(site, "hicache-write-back")[1]["status"] == "baked"


def test_write_back_refuses_two_places_none_and_a_changed_gate(tmp_path):
    site = tree("hicache-write-back", "0.5.22", tmp_path)
    text = move_indexer(site)
    assert "class found in 2" in refused(site, "hicache-write-back", OLD)
    change(site, OLD, lambda old: old.replace("class DSAIndexerPoolHost", "class Other"))
    change(site, DSA, lambda old: old.replace("class DSAIndexerPoolHost", "class Other"))
    assert "class found in 0" in refused(site, "hicache-write-back", DSA)
    change(site, DSA, lambda old: text.replace("self.can_use_write_back_jit = _is_cuda and", "self.can_use_write_back_jit = True and"))
    assert "gate found 0 times" in refused(site, "hicache-write-back", DSA)


def test_radix_gate_of_every_algorithm(tmp_path):
    """0.5.18's own file, whose gate names another variable, and 0.5.22's with the gate that refuses every algorithm."""
    old = sources.copied("0.5.18", tmp_path / "old", [HOOK])
    assert status(old, "decode-radix-spec")[1]["status"] == "baked"
    every = tree("decode-radix-spec", "0.5.22", tmp_path / "every")
    change(every, HOOK, lambda text: text.replace('cfg.speculative_algorithm not in (None, "DSPARK"):', "cfg.speculative_algorithm is not None:", 1))
    assert status(every, "decode-radix-spec")[1]["status"] == "baked"


def test_radix_gate_of_an_unknown_shape_is_refused(tmp_path):
    site = tree("decode-radix-spec", "0.5.22", tmp_path)
    change(site, HOOK, lambda text: text.replace('not in (None, "DSPARK"):', 'not in (None, "DSPARK", "NGRAM"):'))
    refused(site, "decode-radix-spec", HOOK)


def test_radix_gate_gone_is_upstream_but_only_with_its_block(tmp_path):
    site = sources.copied("0.5.23", tmp_path, [HOOK])
    code, entry = status(site, "decode-radix-spec")
    assert code == 0 and entry["status"] == "already upstream"
    change(site, HOOK, lambda text: text.replace("with --enable-hisparse", "with hisparse"))
    refused(site, "decode-radix-spec", HOOK)


def test_wait_events_that_upstream_records_are_left_alone(tmp_path):
    site = tree("prefill-wait-event", "0.5.22", tmp_path)
    event = "req.disagg_kv_sender._early_send_wait_event = written\n"

    def record(text):
        for indent, send in ((16, "self.send_kv_chunk(req)\n"), (20, "self.send_kv_chunk(req, last_chunk=False, end_idx=req.tmp_end_idx)\n")):
            assert text.count(" " * indent + send) == 1
            text = text.replace(" " * indent + send, " " * indent + event + " " * indent + send)
        return text

    change(site, "srt/disaggregation/prefill.py", record)
    before = contents(site)
    assert status(site, "prefill-wait-event")[1]["status"] == "already upstream"
    assert contents(site) == before


def test_absorb_without_a_configuration_is_not_needed_and_another_form_is_refused(tmp_path):
    file = "srt/models/deepseek_common/attention_forward_methods/forward_mla_rocm.py"
    without = sources.copied("0.5.18", tmp_path / "old", [file])
    assert status(without, "mla-absorb-config")[1]["status"] == "not needed"
    other = tree("mla-absorb-config", "0.5.22", tmp_path / "new")
    change(other, file, lambda text: text.replace("_absorb_bmm_config(", "_tile_table("))
    refused(other, "mla-absorb-config", file)


def test_metrics_without_a_sender_are_not_needed(tmp_path):
    site = tree("kv-metrics-noblock", "0.5.22", tmp_path)
    change(site, "srt/managers/scheduler_components/kv_events_publisher.py", lambda text: text.replace("emit_kv_metrics", "publish"))
    assert status(site, "kv-metrics-noblock")[1]["status"] == "not needed"


def test_indexer_without_the_mask_line(tmp_path):
    """The layout before masking came between the logits and top-k."""
    site = tree("dsa-indexer-rows", "0.5.22", tmp_path)
    file = "srt/layers/attention/dsa/dsa_indexer.py"
    change(site, file, lambda text: text.replace("        self._mask_init_and_local_tokens(logits, seqlens_32)\n        topk_result", "        topk_result"))
    assert status(site, "dsa-indexer-rows")[1]["status"] == "baked"
    assert "ke_offset=metadata.get_seqlens_expanded()[:infera_real_rows]" in (site / "sglang" / file).read_text()

#!/usr/bin/env python3
"""usage: observe.py PACKAGE    run every observation on one sglang package (the folder that holds srt/) and print them as JSON

Needs torch (CPU) and pyzmq; imports nothing of SGLang.
"""
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import dsa
import engine
from extract import outcome

OBSERVATIONS = {
    "dsa-page-table-rows": dsa.page_table_rows, "dsa-host-syncs": dsa.host_syncs, "dsa-indexer-rows": dsa.indexer_rows,
    "prefill-wait-event": engine.prefill_wait_event, "kv-metrics-noblock": engine.kv_metrics_noblock, "mla-absorb-config": engine.mla_absorb_config,
    "pp-embed-dim": engine.pp_embed_dim, "hicache-write-back": engine.hicache_write_back, "decode-radix-spec": engine.decode_radix_spec,
    "upstream": engine.upstream,
}

if __name__ == "__main__":
    chosen = sys.argv[2:] or list(OBSERVATIONS)
    print(json.dumps({name: outcome(OBSERVATIONS[name], pathlib.Path(sys.argv[1])) for name in chosen}, indent=1))

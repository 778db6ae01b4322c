#!/bin/sh
# In the engine's own Python: Mooncake's files where a stage made some, then the patches and their ledger.
set -eu
home=/usr/local/lib/infera
python3 -c 'import importlib.util, sys; sys.exit(0 if importlib.util.find_spec("sglang") else "the base holds no SGLang for its python3")'
if [ -f /opt/infera-mooncake/install.sh ]; then sh /opt/infera-mooncake/install.sh; fi
python3 "$home/patches/apply.py" --ledger "$home/ledger.json" ${EXPECTED_LEDGER:+--expect "$EXPECTED_LEDGER"} || {
    status=$?
    [ "$status" != 3 ] || echo "the base's ledger is not the one expected of $EXPECTED_LEDGER; image_allow_other_ledger: true builds nevertheless" >&2
    exit "$status"
}
mooncake=pypi
if [ -f /opt/infera-mooncake/label ]; then mooncake=$(cat /opt/infera-mooncake/label); fi
python3 - "$home" "$mooncake" <<'PYTHON'
import importlib.metadata
import json
import pathlib
import sys

home = pathlib.Path(sys.argv[1])
ledger = json.loads((home / "ledger.json").read_text(encoding="utf-8"))
facts = {"ledger": ledger["digest"], "mooncake": sys.argv[2], "sglang": importlib.metadata.version("sglang")}
(home / "facts.json").write_text(json.dumps(facts) + "\n", encoding="utf-8")
PYTHON

#!/bin/sh
# cpu: SGLang and all that it imports, from /build/wheels, into /opt/infera. rocm: the base holds SGLang; nothing to do.
set -eu
case "$FLAVOUR" in
    rocm)
        mkdir -p /opt/infera
        ;;
    cpu)
        python3 -m venv /opt/infera
        /opt/infera/bin/pip -q install --disable-pip-version-check --no-compile --no-index --no-deps --find-links /build/wheels \
            -r /build/wheels/requirements.txt
        /opt/infera/bin/python /build/cpu/install_shim.py
        # Importing an engine compiles what an engine imports, once here and not at each start of a container.
        SGLANG_USE_CPU_ENGINE=1 HF_HUB_OFFLINE=1 /opt/infera/bin/python -W ignore -c \
            'import sglang.launch_server, sglang.srt.managers.scheduler, sglang.srt.models.qwen3, sglang.srt.entrypoints.http_server'
        /opt/infera/bin/python -c 'import torch, sys; sys.exit(0 if torch.version.cuda is None and torch.version.hip is None else "torch is not a CPU build")'
        ;;
    *)
        echo "FLAVOUR '$FLAVOUR': must be rocm or cpu" >&2
        exit 2
        ;;
esac

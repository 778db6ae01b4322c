#!/bin/sh
# mooncake.sh SOURCES OUT: rocm: make Mooncake's transfer engine ready for installation in OUT. cpu: the PyPI wheel serves; OUT stays empty.
set -eu
sources=$1 out=$2
mkdir -p "$out"
case "$FLAVOUR" in
    cpu) ;;
    rocm)
        [ -f "$sources/stage.sh" ] || { echo "images/sglang/mooncake/stage.sh is missing: the rocm flavour needs it" >&2; exit 2; }
        sh "$sources/stage.sh" "$MOONCAKE_STAGE" "$out"
        ;;
    *) echo "FLAVOUR '$FLAVOUR': must be rocm or cpu" >&2; exit 2 ;;
esac

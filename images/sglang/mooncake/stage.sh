#!/bin/sh
# stage.sh build|prebuilt OUT: fill OUT with Mooncake's transfer engine, install.sh, and label (how far it was verified).
# build: from source, at the pin of build.sh. prebuilt: the one wheel beside this script; its gates must pass, or
# MOONCAKE_ALLOW_UNVERIFIED=yes, which labels the image unverified.
set -eu
stage=${1:-} out=${2:-}
here=$(cd "$(dirname "$0")" && pwd)
fail() { echo "stage.sh: $*" >&2; exit 1; }
[ -n "$out" ] || fail "usage: stage.sh build|prebuilt OUT"
mkdir -p "$out"

case "$stage" in
    build)
        bash "$here/build.sh" all "${MOONCAKE_WORK:-/tmp/mooncake}" "$out"
        # the pin as build.sh resolved it
        git -C "${MOONCAKE_WORK:-/tmp/mooncake}" rev-parse HEAD > "$out/label"
        ;;
    prebuilt)
        count=0 wheel=
        for file in "$here"/*.whl; do
            [ -e "$file" ] || continue
            count=$((count + 1)) wheel=$file
        done
        [ "$count" = 1 ] || fail "MOONCAKE_STAGE=prebuilt needs one Mooncake wheel beside this script (image_mooncake_prebuilt), found $count"
        if python3 "$here/gates.py" binary "$wheel"; then
            echo prebuilt > "$out/label"
        elif [ "${MOONCAKE_ALLOW_UNVERIFIED:-no}" = yes ]; then
            echo "stage.sh: going on, as MOONCAKE_ALLOW_UNVERIFIED=yes asks; the image is labelled mooncake=unverified" >&2
            echo unverified > "$out/label"
        else
            fail "$(basename "$wheel") fails the gates above; build from source (MOONCAKE_STAGE=build), or accept it with image_allow_unverified_mooncake: true"
        fi
        cp "$wheel" "$out/"
        ;;
    *) fail "MOONCAKE_STAGE '$stage': must be build or prebuilt" ;;
esac
cp "$here/install.sh" "$out/install.sh"

#!/bin/sh
# Put the transfer engine beside this script into the python3 that runs SGLang: a wheel, or a built engine over the package that is there.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
fail() { echo "install.sh: $*" >&2; exit 1; }
# Debian's own Python refuses pip without it.
export PIP_BREAK_SYSTEM_PACKAGES=1

package() {
    python3 -c 'import importlib.util, sys
found = importlib.util.find_spec("mooncake")
sys.exit(1) if found is None or not found.submodule_search_locations else print(list(found.submodule_search_locations)[0])'
}

for wheel in "$here"/*.whl; do
    [ -e "$wheel" ] || continue
    # Every distribution of the engine owns the same folder.
    for name in mooncake-transfer-engine mooncake-transfer-engine-non-cuda mooncake-transfer-engine-cuda13 mooncake-transfer-engine-rocm; do
        if python3 -m pip -q show "$name" >/dev/null 2>&1; then python3 -m pip -q uninstall -y "$name"; fi
    done
    python3 -m pip -q install --disable-pip-version-check --no-index --no-deps "$wheel"
    package >/dev/null || fail "$(basename "$wheel") was installed, but python3 finds no package mooncake"
    exit 0
done

target=$(package) || fail "the base has no Python package mooncake for the built engine to go into"
# Python prefers a tagged file name, so an older engine under another name must not stay.
rm -f "$target"/engine*.so
cp "$here"/engine*.so "$here/libasio.so" "$target/"
echo "$target" > /etc/ld.so.conf.d/infera-mooncake.conf
ldconfig
python3 -c 'import mooncake.engine' || fail "the built engine does not load in this base"

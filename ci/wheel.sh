#!/bin/sh
# The one wheel, installed into an empty environment, gives working commands.
set -eu
cd "$(dirname "$0")/.."
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
cp -r router_py "$out/src"
rm -rf "$out"/src/build "$out"/src/src/*.egg-info
python3 -m pip wheel -q --no-deps -w "$out" "$out/src"
python3 -m venv "$out/venv"
"$out/venv/bin/pip" install -q --disable-pip-version-check "$out"/infera_router-*.whl
cd "$out"
for name in infera-router infera-engine; do
  "$out/venv/bin/$name" --help | grep -q -- --etcd-endpoint || { echo "$name --help does not work" >&2; exit 1; }
  echo "$name: ok"
done

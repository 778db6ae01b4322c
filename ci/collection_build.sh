#!/bin/sh
# The tarball builds, installs without Galaxy, holds no local folder, and documents itself.
set -eu
cd "$(dirname "$0")/.."
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
ansible-galaxy collection build --force --output-path "$out" >/dev/null
tarball=$(ls "$out"/infera-serving-*.tar.gz)
bad=$(tar tzf "$tarball" | grep -E '^(\.venv|\.deps|\.cache|\.collections|runs|dist|build|molecule|inventories)/' | head -n 3 || true)
[ -z "$bad" ] || { echo "the tarball carries local files: $bad" >&2; exit 1; }
ansible-galaxy collection install --offline --no-deps --force -p "$out/inst" "$tarball" >/dev/null
cd "$out"
export ANSIBLE_COLLECTIONS_PATH="$out/inst:$OLDPWD/.deps"
unset ANSIBLE_CONFIG
for kind in module filter test; do
  names=$(ansible-doc -t "$kind" -l infera.serving 2>/dev/null | awk '{print $1}')
  for name in $names; do
    ansible-doc -t "$kind" "$name" >/dev/null || { echo "ansible-doc -t $kind $name failed" >&2; exit 1; }
  done
  echo "$kind: $(echo "$names" | wc -w) documented"
done
for role in "$out"/inst/ansible_collections/infera/serving/roles/*/; do
  name=$(basename "$role")
  ansible-doc -t role "infera.serving.$name" | grep -q . || { echo "role $name has no argument spec" >&2; exit 1; }
done

#!/bin/sh
# Every shell script of the tree, by its ending or its first line.
set -eu
cd "$(dirname "$0")/.."
git ls-files | while read -r f; do
  [ -f "$f" ] || continue
  case $f in
    *.sh) echo "$f" ;;
    *) if head -c 64 "$f" | head -n 1 | tr -d '\0' | grep -qE '^#!.*\b(ba)?sh$'; then echo "$f"; fi ;;
  esac
done | xargs shellcheck

#!/bin/sh
# `make clean`, then everything that make put into this checkout or onto this machine, except Debian packages.
set -eu
cd "$(dirname "$0")/.."
if [ -x .venv/bin/ansible-playbook ]; then
  .venv/bin/ansible-playbook playbooks/distclean.yml -i "${INVENTORY:-inventories/local}" -l "${LIMIT:-local}"
fi
rm -rf .venv .deps .cache .ansible build dist
echo "Left in place: Debian packages, the Docker engine's configuration, and runs/ (records and logs)."

#!/bin/sh
# Build infera-test/host:bookworm, the image of molecule's hosts, upon the newest infera/base of this machine; makes that base where there is none.
set -eu
cd "$(dirname "$0")/.."
base() { docker images --format '{{.Repository}}:{{.Tag}}' infera/base | head -n 1; }
if [ -z "$(base)" ]; then
  .venv/bin/ansible-playbook playbooks/image.yml -i inventories/local -e '{"image_names": ["etcd"], "image_etcd_source": "debian"}'
fi
docker build -q --build-arg BASE="$(base)" -t infera-test/host:bookworm molecule/host_image

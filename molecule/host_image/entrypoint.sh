#!/bin/sh
# Docker mounts these read-only unless a container is --privileged; systemd and a nested engine write below them.
awk '$3 ~ /^cgroup2?$/ || $2 == "/proc/sys" || $2 == "/sys" { print $2 }' /proc/mounts |
  while read -r mount; do mount -o remount,bind,rw "$mount"; done
exec "$@"

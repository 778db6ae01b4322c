#!/bin/sh
# Make .venv (and .deps) equal to the pinned requirements; a second run takes no time.
# usage: ci/venv.sh run|dev
set -eu
cd "$(dirname "$0")/.."
kind=${1:-run}
case $kind in
  run) files="requirements.txt" ;;
  dev) files="requirements-dev.txt requirements.txt router_py/pyproject.toml" ;;
  *) echo "ci/venv.sh: unknown kind '$kind'; use run or dev" >&2; exit 2 ;;
esac

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; elif command -v sudo >/dev/null; then sudo "$@"; else
    echo "ci/venv.sh: need root or sudo to run: $*" >&2; exit 1
  fi
}

installed() { dpkg-query -W -f='${Status}' "$1" 2>/dev/null | grep -q 'ok installed'; }

apt_install() {
  missing=""
  for package in "$@"; do installed "$package" || missing="$missing $package"; done
  [ -n "$missing" ] || return 0
  echo "Installing$missing (Debian packages)"
  as_root apt-get update -qq
  # shellcheck disable=SC2086
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
}

if ! command -v python3 >/dev/null; then apt_install python3; fi
python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
  echo "ci/venv.sh: python3 is $(python3 -V 2>&1); ansible-core 2.19 needs 3.11 or newer. Use Debian 12 or Ubuntu 24.04" >&2
  exit 1
}
# Debian splits ensurepip off; an interpreter from elsewhere brings its own.
python3 -c 'import ensurepip, venv' 2>/dev/null || apt_install python3-venv

# shellcheck disable=SC2086
stamp=.venv/.stamp-$kind-$(cat $files ci/venv.sh ci/unpack_collections.py | sha256sum | cut -c1-16)
[ -e "$stamp" ] && { [ "$kind" = run ] || [ -e .venv/.dev-apt ]; } && [ -x .venv/bin/ansible-playbook ] && exit 0
[ -x .venv/bin/python ] || python3 -m venv .venv
echo "Installing the controller's Python packages ($kind): about half a minute"
if [ "$kind" = run ]; then
  .venv/bin/python -m pip install -q --disable-pip-version-check -r requirements.txt
else
  .venv/bin/python -m pip install -q --disable-pip-version-check -r requirements-dev.txt
  .venv/bin/python -m pip install -q --disable-pip-version-check -e router_py
  # what the tests start or call beside Python packages; Debian's services of them would take the deployment's ports
  services=""
  installed etcd-server || services="etcd"
  installed prometheus || services="$services prometheus"
  apt_install etcd-server etcd-client prometheus shellcheck libibverbs1 libnuma1 libcurl4 openssl curl python3-apt python3-requests cmake ninja-build openssh-client
  # shellcheck disable=SC2086
  [ -z "$services" ] || [ ! -d /run/systemd/system ] || as_root systemctl disable --quiet --now $services
  touch .venv/.dev-apt
fi
.venv/bin/python ci/unpack_collections.py
rm -f .venv/.stamp-"$kind"-*
touch "$stamp"

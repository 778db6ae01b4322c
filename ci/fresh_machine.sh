#!/bin/sh
# Prove `make deploy` on a fresh Debian 12: a machine in a container, with git, make and python3 and nothing else, without systemd.
# usage: ci/fresh_machine.sh [--keep] [--check-first] [--suite noble --mirror URL --keyring FILE] [--args 'ARGS of make deploy']
#
# Makes the root file system with debootstrap (kept in FRESH_CACHE, default ~/.cache/infera-serving-fresh), starts it with namespaces of its
# own, clones HEAD of this checkout into it, and types there: make deploy, the curl line that it prints, make deploy, make clean,
# make distclean. Prints what each step took; exits 1 with a line "FAILED ..." for each expectation that does not hold.
# The controller's pip settings (pip config, PIP_*), its proxy variables and apt's sources and proxy are passed on as they are.
# Needs root, a Docker engine that allows new capabilities, debootstrap, 20 GB and, on two idle cores, about 12 minutes.
set -eu
cd "$(dirname "$0")/.."
keep='' check='' suite=bookworm mirror='' keyring='' arguments=''
while [ $# -gt 0 ]; do
  case $1 in
    --keep) keep=yes ;;
    --check-first) check=yes ;;
    --suite) suite=$2; shift ;;
    --mirror) mirror=$2; shift ;;
    --keyring) keyring=$2; shift ;;
    --args) arguments=$2; shift ;;
    *) sed -n '2,11p' "$0" >&2; exit 2 ;;
  esac
  shift
done
cache=${FRESH_CACHE:-$HOME/.cache/infera-serving-fresh}
image=infera-fresh:$suite
name=infera-fresh-$$
work=$(mktemp -d)
failed=0
python=.venv/bin/python
[ -x "$python" ] || python=python3

# shellcheck disable=SC2317
end() {
  [ -n "$keep" ] || docker rm -fv "$name" >/dev/null 2>&1 || true
  rm -rf "$work"
}
trap end EXIT
trap 'exit 130' INT TERM
fail() { echo "FAILED $*"; failed=1; }
inside() {
  docker exec --env-file "$work/env" -w "${2:-/root/infera}" "$name" sh -c "$1"
}
seconds() { date +%s; }

# A machine as its owner gets it. python3-venv, Docker and sudo are not on it.
rootfs() {
  [ -f "$cache/$suite.tar" ] && return
  mkdir -p "$cache"
  if [ -z "$mirror" ]; then
    # shellcheck disable=SC2016
    mirror=$(apt-get indextargets --format '$(SITE) $(RELEASE)' 'Created-By: Packages' | awk -v s="$suite" '$2 == s { print $1; exit }')
    [ -n "$mirror" ] || { echo "no apt source of this machine holds $suite: give --mirror" >&2; exit 2; }
  fi
  rm -rf "$cache/$suite.root"
  script=/usr/share/debootstrap/scripts/$suite components=main
  # Ubuntu keeps Docker in universe, and an older debootstrap does not know its newer suites by name.
  [ "$suite" = bookworm ] || components=main,universe
  [ -e "$script" ] || script=/usr/share/debootstrap/scripts/jammy
  debootstrap --variant=minbase --components=$components ${keyring:+--keyring="$keyring"} --include=git,make,python3 \
    "$suite" "$cache/$suite.root" "$mirror" "$script" >"$cache/$suite.log" 2>&1 || { tail -3 "$cache/$suite.log" >&2; exit 1; }
  rm -rf "$cache/$suite.root"/var/cache/apt/archives/*.deb "$cache/$suite.root"/var/lib/apt/lists/*
  tar --numeric-owner -C "$cache/$suite.root" -cf "$cache/$suite.tar.new" .
  rm -rf "$cache/$suite.root"
  mv "$cache/$suite.tar.new" "$cache/$suite.tar"
}

# pip's settings of this machine -> /etc/pip.conf of the fresh one, PIP_* -> its environment; local folders are mounted,
# files copied.
settings() {
  "$python" - "$work" <<'PYTHON'
import os, pathlib, shlex, subprocess, sys

work = pathlib.Path(sys.argv[1])
listed = subprocess.run(["pip", "config", "list"], capture_output=True, text=True, check=False).stdout
conf, values = ["[global]"], []
for line in listed.splitlines():
    key, _, value = line.partition("=")
    value = shlex.split(value)[0] if value else ""
    values.append(value)
    if key.startswith("global."):
        conf.append(f"{key[7:]} = " + "\n    ".join(value.split()))
passed = {key: value for key, value in os.environ.items() if key.startswith("PIP_") or key.lower() in ("http_proxy", "https_proxy", "no_proxy")}
folders, files = set(), {}
for word in " ".join([*values, *(value for key, value in passed.items() if key.startswith("PIP_"))]).split():
    path = pathlib.Path(word.removeprefix("file://"))
    if path.is_absolute() and path.is_file():
        # Not to its own place: a package of the machine may write its certificates there.
        files[str(path)] = f"/srv/controller/{len(files)}-{path.name}"
    elif path.is_absolute() and path.is_dir():
        # an index links to files beside its pages
        folders.add(str(path.parent if path.name == "simple" else path))


def moved(text):
    for old, new in files.items():
        text = text.replace(old, new)
    return text


(work / "pip.conf").write_text(moved("\n".join(conf) + "\n"))
(work / "env").write_text("".join(moved(f"{key}={value}\n") for key, value in sorted(passed.items())))
(work / "mounts").write_text("".join(f"-v {folder}:{folder}:ro\n" for folder in sorted(folders)))
(work / "files").write_text("".join(f"{old} {new}\n" for old, new in sorted(files.items())))
PYTHON
}

machine() {
  docker image inspect "$image" >/dev/null 2>&1 || docker import "$cache/$suite.tar" "$image" >/dev/null
  git bundle create -q "$work/infera.bundle" HEAD
  # All capabilities but one: a Docker engine without CAP_SYS_RESOURCE itself cannot give it on, and nothing here needs it.
  # shellcheck disable=SC2046
  docker run -d --init --name "$name" --hostname fresh --cap-add ALL --cap-drop SYS_RESOURCE --security-opt seccomp=unconfined \
    --device-cgroup-rule 'a *:* rwm' --cgroupns private --tmpfs /run:exec -v /var/lib/docker $(cat "$work/mounts") "$image" sleep infinity >/dev/null
  inside "awk '\$3 ~ /^cgroup2?\$/ || \$2 == \"/proc/sys\" || \$2 == \"/sys\" { print \$2 }' /proc/mounts | while read -r m; do mount -o remount,bind,rw \"\$m\"; done" /
  docker cp "$work/infera.bundle" "$name:/root/infera.bundle"
  docker cp "$work/pip.conf" "$name:/etc/pip.conf"
  inside "mkdir -p /srv/controller" /
  while read -r old new; do docker cp -L "$old" "$name:$new"; done <"$work/files"
  proxy=$(apt-config dump --format '%v' Acquire::http::Proxy)
  [ -z "$proxy" ] || inside "echo 'Acquire::http::Proxy \"$proxy\";' >/etc/apt/apt.conf.d/90proxy" /
  for word in python3-venv docker.io sudo; do
    ! inside "dpkg-query -W -f '\${db:Status-Status}' $word 2>/dev/null" / | grep -qx installed || fail "the fresh machine already has $word"
  done
}

deploy() {
  { inside "make deploy ARGS='$arguments'" && echo ok >"$work/$1.ok"; } 2>&1 | "$python" ci/step_times.py --first "make: .venv and .deps" >"$work/$1.log"
  cp "$work/$1.log" "$cache/$1.log"
  sed -n '/^step /,$p' "$work/$1.log"
  [ -e "$work/$1.ok" ] && return
  grep -A12 -m1 -E '^(fatal|\[ERROR\])' "$work/$1.log" || tail -20 "$work/$1.log"
  fail "$1 make deploy"
  exit 1
}

started() { inside "docker ps -q | xargs docker inspect --format '{{.Name}} {{.State.StartedAt}}' | sort" /; }

begin=$(seconds); rootfs; settings; machine
echo "the machine: $(($(seconds) - begin)) s (not counted below); load $(cut -d' ' -f1-3 /proc/loadavg)"
inside "git -c advice.detachedHead=false clone -q /root/infera.bundle infera" /root

if [ -n "$check" ]; then
  inside "make venv && .venv/bin/ansible-playbook site.yml -i inventories/local -l local --check --diff $arguments" >"$work/check.log" 2>&1 \
    || { tail -20 "$work/check.log"; fail "--check --diff before anything is there"; }
  left=$(inside "ls -d /etc/docker /var/lib/infera /var/cache/infera-serving 2>/dev/null; command -v dockerd" || true)
  [ -z "$left" ] || fail "--check changed the machine: $left"
  inside "rm -rf .venv .deps"
fi

begin=$(seconds); deploy first; took=$(($(seconds) - begin))
echo "first make deploy: $took s; load $(cut -d' ' -f1-3 /proc/loadavg)"
[ "$took" -le 600 ] || fail "the first make deploy took $took s, more than 10 minutes"

line=$(sed -n 's/^.*\(curl -s http.*\)$/\1/p' "$work/first.log" | tail -1 | sed "s/\\\\\"/\"/g; s/\"$//")
inside "apt-get install -qqy --no-install-recommends curl >/dev/null 2>&1" /
answer=$(inside "$line" /) || true
echo "\$ $line"; echo "$answer" | head -c 600; echo
echo "$answer" | grep -q '"choices"' || fail "the printed curl line got no completion"

before=$(started)
begin=$(seconds); deploy second; took=$(($(seconds) - begin))
echo "second make deploy: $took s"
[ "$took" -lt 60 ] || fail "the second make deploy took $took s, not under a minute"
grep -Eq 'changed=[1-9]' "$work/second.log" && fail "the second make deploy changed something: $(grep -E 'changed=[1-9]' "$work/second.log")"
[ "$before" = "$(started)" ] || fail "the second make deploy restarted a container"

inside "make clean" >"$work/clean.log" 2>&1 || { tail -20 "$work/clean.log"; fail "make clean"; }
left=$(inside "docker ps -aq; docker volume ls -q; docker network ls -q --filter type=custom; ls -d /var/lib/infera 2>/dev/null || true" /)
[ -z "$left" ] || fail "make clean left: $left"
images=$(inside "docker images --format '{{.Repository}}' | grep -v '<none>' | sort -u" /)
[ "$images" = infera/base ] || fail "make clean should leave the base image alone, and there are: $images"
inside "make distclean" >"$work/distclean.log" 2>&1 || { tail -20 "$work/distclean.log"; fail "make distclean"; }
left=$(inside "ls -d .venv .deps /var/cache/infera-serving /root/.cache/infera-serving 2>/dev/null; pidof dockerd" || true)
[ -z "$left" ] || fail "make distclean left: $left"

[ "$failed" = 0 ] && echo "fresh machine: all expectations hold"
exit "$failed"

#!/bin/sh
# ansible-test sanity over the committed tree, in a copy at the path that it insists on.
# usage: ci/sanity.sh [ansible-test sanity arguments]
set -eu
cd "$(dirname "$0")/.."
root=$(pwd)
PATH=$root/.venv/bin:$PATH
work=${INFERA_TEST_CACHE:-$root/.cache}/sanity
tree=$work/ansible_collections/infera/serving
rm -rf "$tree"
mkdir -p "$tree"
git archive HEAD | tar x -C "$tree"
# not part of the collection: galaxy.yml's build_ignore
rm -rf "$tree/.collections" "$tree/molecule" "$tree/bench" "$tree/.ci"
[ -d "$root/.deps/ansible_collections" ] && cp -r "$root/.deps/ansible_collections/." "$work/ansible_collections/"
cd "$tree"
git init -q . && git add -A && git -c user.name=ci -c user.email=ci@localhost commit -qm tree

# Each sanity test makes a venv without pip and fetches get-pip from a host that may be out of reach; this does the same from PyPI.
version=$(python3 - <<'P'
import pathlib, re
import ansible_test
text = "".join(p.read_text() for p in pathlib.Path(ansible_test.__file__).parent.rglob("python_requirements.py"))
print(re.search(r"pip='([0-9.]+)'", text).group(1))
P
)
cache=$HOME/.ansible/test/cache
mkdir -p "$cache"
cat >"$cache/get_pip_$(echo "$version" | tr . _).py" <<P
import subprocess
import sys
subprocess.check_call([sys.executable, "-m", "ensurepip"], stdout=subprocess.DEVNULL)
subprocess.check_call([sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "pip==$version"])
P
python=$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
exec ansible-test sanity --local --python "$python" --color no "$@"

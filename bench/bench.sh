#!/bin/sh
# The router beside its peers, in one run: prints tables and figures, asserts nothing. `make bench ARGS=...` hands ARGS to run_router_bench.
#   bench/bench.sh                 nginx, haproxy, the PD routers of PyPI, a hand-written floor, ours with 1 and 2 processes; 3 rounds
#   bench/bench.sh --decisions     exact tokens on prompts of 100k tokens, and how level the decode targets are at four request weights
#   bench/bench.sh --growth        only how our cost grows with targets, streams and body size
# BENCH_PYTHON: the Python that runs our router and the floor. Default Debian's, which the router image has too: built with profile-guided
# optimisation it takes a tenth off what an interpreter without costs.
set -eu
HERE=$(cd "$(dirname "$0")" && pwd)
ROOT=$(dirname "$HERE")
BUILD=$HERE/build
PEERS=${ROUTER_BENCH_PEERS:-$BUILD/peers}
PY=${BENCH_PYTHON:-/usr/bin/python3}
"$PY" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || PY=$ROOT/.venv/bin/python

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }
missing=""
for package in nginx-light haproxy etcd-server gcc libc6-dev; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing="$missing $package"
done
if [ -n "$missing" ]; then
  echo "Installing$missing (Debian packages)"
  as_root apt-get update -qq
  # shellcheck disable=SC2086
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
fi

mkdir -p "$BUILD"
if [ ! -e "$BUILD/router/.made" ]; then
  echo "Installing our router for $PY"
  "$PY" -m venv --without-pip "$BUILD/router"
  # what the router image has, gigatoken included
  "$ROOT/.venv/bin/python" -m pip --python "$BUILD/router/bin/python" install -q --disable-pip-version-check --no-deps \
    -r "$ROOT/images/router/requirements-router.txt" -e "$ROOT/router_py"
  touch "$BUILD/router/.made"
fi
INFERA_ROUTER=$BUILD/router/bin/infera-router
export INFERA_ROUTER

if [ "${1:-}" = --growth ]; then
  shift
  exec "$ROOT/.venv/bin/python" "$HERE/growth.py" "$@"
fi
if [ ! -e "$PEERS/.made" ]; then
  echo "Installing the peers into $PEERS: two minutes, 1 GB"
  PYTHON="$ROOT/.venv/bin/python" sh "$HERE/setup_peers.sh" "$PEERS"
  touch "$PEERS/.made"
fi
# Real-time scheduling keeps other work on the machine out of the figures; it needs root and is not everywhere allowed.
RT=""
if chrt -r 1 true 2>/dev/null; then RT=--rt; else echo "real-time scheduling is not allowed here: figures of a busy machine are noise"; fi
PD_PEERS=sglang-router:cache_aware,sglang-router:power_of_two,smg:cache_aware,smg:power_of_two
# shellcheck disable=SC2086
bench() { "$ROOT/.venv/bin/python" "$HERE/run_router_bench" --peers "$PEERS" $RT --rounds 3 "$@"; }
weighted() {
  echo "w$1=$INFERA_ROUTER --host {host} --port {port} --etcd-endpoint {etcd} --etcd-prefix {etcd_prefix} --log-level warning \
--router-policy kv-aware --router-tokenizer-path {tokenizer} --decode-input-demand on --decode-request-weight $1"
}

if [ "${1:-}" = --decisions ]; then
  shift
  bench --routers direct,nginx,$PD_PEERS,infera:tokens --scenarios long_c1,long_c4 --out "$BUILD/long.json" "$@"
  # a new conversation's first turn takes a few ms: short rounds in turn, as below
  bench --routers $PD_PEERS,infera:tokens --scenarios long_c1 --turns 1 --sessions 4 "$@" --in-turn --rounds 60 --out "$BUILD/first.json"
  bench --routers direct,$PD_PEERS,infera:tokens --scenarios long_c1 --turns 41 --sessions 10 --out "$BUILD/sessions.json" "$@"
  "$ROOT/.venv/bin/python" "$HERE/session_cost.py" "$BUILD/first.json" "$BUILD/sessions.json"
  bench --routers reference:pd-relay,reference:pd-demand,reference:pd-demand-w0 --scenarios mix_balance --out "$BUILD/balance.json" \
    --extra "$(weighted 0)" --extra "$(weighted 1000)" --extra "$(weighted 8000)" --extra "$(weighted 1000000)" "$@"
  echo "one decode of 8 ranks"
  bench --decodes 1 --dp 8 --routers "$PD_PEERS" --scenarios mix_balance --out "$BUILD/balance-ranks.json" --extra "$(weighted 1000000)" "$@"
  exit
fi
bench --quick --routers "direct,nginx,haproxy,reference:pd-relay,$PD_PEERS,infera,infera:off" \
  --scenarios small_c1,small_c32,small_c128,small_r100,stream_64,stream_256,stream_sat --out "$BUILD/result.json" "$@"
# The differences asked for are smaller than what the machine changes by within a second, so the routers that are compared all run from the first round to
# the last and take short turns.
bench --quick --routers "$PD_PEERS,infera" --scenarios small_c1,small_c32 "$@" --in-turn --duration 1 --rounds 12 --out "$BUILD/small.json"
bench --quick --routers "nginx,reference:pd-relay,$PD_PEERS,infera" --scenarios stream_256,stream_sat "$@" --in-turn --rounds 7 --out "$BUILD/streams.json"
bench --quick --routers infera,infera:workers-2 --scenarios small_c32,small_c64 "$@" --in-turn --duration 1 --rounds 30 --out "$BUILD/workers.json"
bench --quick --routers "direct,$PD_PEERS,infera" --scenarios small_r100 "$@" --in-turn --duration 2 --rounds 30 --out "$BUILD/added.json"
exec "$ROOT/.venv/bin/python" "$HERE/targets.py" "$BUILD/small.json" "$BUILD/streams.json" "$BUILD/workers.json" "$BUILD/added.json" "$BUILD/result.json"

#!/bin/bash
# Build Mooncake's transfer engine for ROCm from one pinned commit.
# usage: build.sh all WORK OUT          every step below
#        build.sh fetch WORK            clone, check out the pin, fetch the submodules
#        build.sh gates WORK            source gates
#        build.sh yalantinglibs WORK PREFIX   install yalantinglibs from the pinned submodule
#        build.sh compile WORK PREFIX   configure and build the Python module
#        build.sh collect WORK OUT      binary gates, then the files to install
# MOONCAKE_REPO, MOONCAKE_REF (commit), MOONCAKE_GPU_ARCH, MOONCAKE_JOBS.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
MOONCAKE_REPO=${MOONCAKE_REPO:-https://github.com/kvcache-ai/Mooncake.git}
MOONCAKE_REF=${MOONCAKE_REF:-faae8dd4a6309c3ecd47e0721a83b0250d686fa2}
MOONCAKE_GPU_ARCH=${MOONCAKE_GPU_ARCH:-gfx950}
MOONCAKE_JOBS=${MOONCAKE_JOBS:-$(nproc)}

fail() { echo "build.sh: $*" >&2; exit 1; }

need() {
    local tool
    for tool in "$@"; do
        command -v "$tool" >/dev/null || fail "$tool is not installed in the base; step '$step' needs it"
    done
}

fetch() {
    need git
    [[ $MOONCAKE_REF =~ ^[0-9a-f]{40}$ ]] || fail "MOONCAKE_REF '$MOONCAKE_REF': must be a full commit of 40 hex digits, so that the build is the same tomorrow"
    git clone --quiet --filter=blob:none --no-checkout "$MOONCAKE_REPO" "$1"
    git -C "$1" checkout --quiet --detach "$MOONCAKE_REF"
    git -C "$1" submodule update --quiet --init --recursive --depth 1
    [[ $(git -C "$1" rev-parse HEAD) == "$MOONCAKE_REF" ]] || fail "checked out another commit than $MOONCAKE_REF"
}

gates() { need python3; python3 "$here/gates.py" source "$1"; }

# find_package(yalantinglibs) wants an installed package, and the base brings none.
yalantinglibs() {
    need cmake ninja
    local sources=$1/extern/yalantinglibs
    [[ -f $sources/CMakeLists.txt ]] || fail "$sources has no CMakeLists.txt: the submodule was not fetched"
    cmake -S "$sources" -B "$sources/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX="$2" \
        -DBUILD_EXAMPLES=OFF -DBUILD_BENCHMARK=OFF -DBUILD_UNIT_TESTS=OFF
    cmake --build "$sources/build" --parallel "$MOONCAKE_JOBS"
    cmake --install "$sources/build"
}

compile() {
    need cmake ninja python3
    local rocm=${ROCM_PATH:-/opt/rocm}
    [[ -d $rocm ]] || fail "$rocm does not exist: this step needs ROCm (ROCM_PATH)"
    # No GPU is visible during a build, so the architecture is told.
    cmake -S "$1" -B "$1/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH="$2;$rocm" \
        -DCMAKE_HIP_ARCHITECTURES="$MOONCAKE_GPU_ARCH" -DGPU_TARGETS="$MOONCAKE_GPU_ARCH" \
        -DPYTHON_EXECUTABLE="$(command -v python3)" -DPython3_EXECUTABLE="$(command -v python3)" \
        -DUSE_HIP=ON -DUSE_HIP_DMABUF=ON -DENABLE_MULTI_PROTOCOL=ON -DUSE_ETCD=OFF \
        -DWITH_STORE=OFF -DWITH_STORE_RUST=OFF -DBUILD_UNIT_TESTS=OFF -DBUILD_EXAMPLES=OFF
    cmake --build "$1/build" --parallel "$MOONCAKE_JOBS" --target engine asio_shared
}

# The module's name carries the interpreter's tag; ask the interpreter instead of writing it down.
collect() {
    local suffix engine asio
    suffix=$(python3 -c 'import sysconfig; print(sysconfig.get_config_var("EXT_SUFFIX"))')
    engine=$(find "$1/build" -name "engine$suffix" -type f)
    [[ -n $engine && $engine != *$'\n'* ]] || fail "expected one engine$suffix below $1/build, found: ${engine:-none}"
    python3 "$here/gates.py" binary "$engine"
    asio=$(find "$1/build" -name libasio.so -type f)
    [[ -n $asio && $asio != *$'\n'* ]] || fail "expected one libasio.so below $1/build, found: ${asio:-none}"
    mkdir -p "$2"
    cp "$engine" "$asio" "$2/"
}

step=${1:-}
case "$step $#" in
    "fetch 2" | "gates 2") "$step" "$2" ;;
    "yalantinglibs 3" | "compile 3" | "collect 3") "$step" "$2" "$3" ;;
    "all 3")
        fetch "$2"
        gates "$2"
        yalantinglibs "$2" "$2/prefix"
        compile "$2" "$2/prefix"
        collect "$2" "$3"
        ;;
    *) sed -n '2,9p' "${BASH_SOURCE[0]}" >&2; exit 2 ;;
esac

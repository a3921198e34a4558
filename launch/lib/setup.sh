# Shared by launch/quickstart and launch/test: installs the requirements, and builds. Sourced by bash.
#
# Every function prints one line per problem on standard error and returns non-zero.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
JOBS=$(nproc)

say() { printf '\033[1m%s\033[0m\n' "$*" >&2; }
plain() { printf '%s\n' "$*" >&2; }
[ -t 2 ] || say() { plain "$@"; }

# help_or_go ARGUMENTS: if they ask for help, prints the comment at the top of the calling script, and ends the script.
help_or_go() {
    case " $* " in
        *" --help "* | *" -h "*)
            sed -n '2,/^[^#]/{s/^# \{0,1\}//p}' "${BASH_SOURCE[1]}"
            exit 0
            ;;
    esac
}

# packages [tests]: prints the packages that the build and a tree need; with `tests`, also those that only tests need.
packages() {
    local left_out='# tests:'
    [ "${1:-}" = tests ] && left_out='^$'
    sed -e "/$left_out/d" -e 's/#.*//' -e 's/[[:space:]]*$//' -e '/^$/d' "$ROOT/launch/dependencies.txt"
}

missing_packages() {
    local package
    for package in $(packages "$@"); do
        dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || echo "$package"
    done
}

# install_packages [tests]: installs the packages of launch/dependencies.txt that this machine lacks.
install_packages() {
    if ! command -v dpkg-query >/dev/null; then
        plain "not a Debian machine: everything in launch/dependencies.txt is assumed to be installed"
        return 0
    fi
    local missing as_root=()
    missing=$(missing_packages "$@")
    [ -z "$missing" ] && return 0
    say "installing" $missing
    if [ "$(id -u)" != 0 ]; then
        if ! command -v sudo >/dev/null; then
            plain "cannot install: neither root nor sudo. As root: apt-get install" $missing
            return 1
        fi
        as_root=(sudo)
    fi
    local log
    log=$(mktemp)
    # Tries again after an update: the package lists of a fresh machine are empty, those of an old one stale.
    local install=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -y
        --no-install-recommends install)
    if ! "${install[@]}" $missing >"$log" 2>&1 &&
        ! { "${as_root[@]}" apt-get -qq update >>"$log" 2>&1 && "${install[@]}" $missing >>"$log" 2>&1; }; then
        tail -n 20 "$log" >&2
        plain "cannot install:" $missing
        rm -f "$log"
        return 1
    fi
    rm -f "$log"
}

# Without a terminal, prints a line per tenth of the build, and all lines that are not progress.
tenths_only() {
    awk '
        match($0, /^\[ *[0-9]+%/) {
            percent = substr($0, 2, 3) + 0
            if (percent >= next_percent) { print; fflush(); next_percent = percent - percent % 10 + 10 }
            next
        }
        { print; fflush() }'
}

# Fetches the sources of xgrammar, as launch/xgrammar.txt pins them, into build/xgrammar; once, by pip.
fetch_xgrammar() {
    local place=$ROOT/build/xgrammar pin folder log
    pin=$(grep '^xgrammar==' "$ROOT/launch/xgrammar.txt")
    [ "$(cat "$place/pin" 2>/dev/null)" = "$pin" ] && return 0
    make_wheel_venv || return 1
    folder=$(mktemp -d)
    log=$folder/log
    if ! timeout 300 "$ROOT/build/wheel-venv/bin/python" -m pip download -q --disable-pip-version-check --retries 1 --no-deps \
        --no-binary xgrammar --require-hashes -r "$ROOT/launch/xgrammar.txt" -d "$folder" >"$log" 2>&1 ||
        ! mkdir -p "$folder/xgrammar" ||
        ! tar -xzf "$folder"/xgrammar-*.tar.gz -C "$folder/xgrammar" --strip-components=1 >>"$log" 2>&1; then
        plain "xgrammar cannot be fetched, so this build refuses grammars: $(tail -n 1 "$log")"
        rm -rf "$folder"
        return 1
    fi
    rm -rf "$place"
    mkdir -p "$place"
    local part
    for part in LICENSE NOTICE cpp include 3rdparty/picojson 3rdparty/dlpack; do
        mkdir -p "$(dirname "$place/$part")"
        cp -r "$folder/xgrammar/$part" "$place/$part"
    done
    echo "$pin" >"$place/pin"
    rm -rf "$folder"
}

# build PRESET [TARGET...]: builds everything, or these targets.
build() {
    local preset=$1 log begin=$SECONDS
    shift
    fetch_xgrammar || true
    say "building ($preset)"
    log=$(mktemp)
    if ! (cd "$ROOT" && cmake --preset "$preset") >"$log" 2>&1; then
        cat "$log" >&2
        rm -f "$log"
        plain "cmake --preset $preset failed"
        return 1
    fi
    rm -f "$log"
    local command=(cmake --build --preset "$preset" -j "$JOBS")
    [ $# -gt 0 ] && command+=(--target "$@")
    if [ -t 1 ]; then  # ninja's own moving line
        (cd "$ROOT" && NINJA_STATUS='[%p] ' "${command[@]}")
    else
        (cd "$ROOT" && set -o pipefail && NINJA_STATUS='[%p] ' "${command[@]}" | tenths_only)
    fi || { plain "the build failed"; return 1; }
    plain "built in $((SECONDS - begin)) s"
}

# Makes the tests' Python environment, build/venv: Debian's Python with Debian's packages.
make_venv() {
    local venv=$ROOT/build/venv
    [ -x "$venv/bin/python" ] && "$venv/bin/python" -c 'import msgpack, pytest, xdist, zmq' 2>/dev/null && return 0
    if ! /usr/bin/python3 -m venv --clear --system-site-packages "$venv" >&2 ||
        ! "$venv/bin/python" -c 'import msgpack, pytest, xdist, zmq' >&2; then
        plain "cannot make the Python test environment $venv"
        return 1
    fi
}

# Makes the Python environment that builds wheels, build/wheel-venv: Debian's Python with pip.
make_wheel_venv() {
    local venv=$ROOT/build/wheel-venv
    [ -x "$venv/bin/python" ] && "$venv/bin/python" -c 'import pip' 2>/dev/null && return 0
    if ! /usr/bin/python3 -m venv --clear "$venv" >&2 || ! "$venv/bin/python" -c 'import pip' >&2; then
        plain "cannot make $venv; on Debian, apt-get install python3-venv"
        return 1
    fi
}

# Installs other projects' clients for end-to-end tests (tests/requirements.txt). Without the clients, these tests skip.
add_clients() {
    local venv=$ROOT/build/venv mark=$ROOT/build/venv/clients
    cmp -s "$ROOT/tests/requirements.txt" "$mark" && return 0
    if timeout 300 "$venv/bin/pip" install -q --disable-pip-version-check --retries 1 \
        -r "$ROOT/tests/requirements.txt" >/dev/null 2>&1; then
        cp "$ROOT/tests/requirements.txt" "$mark"
    else
        plain "no package index can be reached: tests with other people's clients and the routers skip"
    fi
}

# Makes the Python environment with Ray, for fleets. Ray is large, so it has an environment of its own. Returns non-zero
# if Ray cannot be installed; then fleets cannot run.
make_fleet_venv() {
    local venv=$ROOT/build/fleet-venv
    [ -x "$venv/bin/python" ] && "$venv/bin/python" -c 'import msgpack, numpy, ray, zmq' 2>/dev/null && return 0
    plain "making Ray's environment in build/fleet-venv: once, a minute or more"
    if ! /usr/bin/python3 -m venv --clear --system-site-packages "$venv" >&2 ||
        ! (set -o pipefail && timeout 900 "$venv/bin/pip" install --disable-pip-version-check --retries 1 ray 2>&1 |
            { grep --line-buffered -E '^ *(Collecting|Downloading|Installing)' >&2 || true; }) ||
        ! "$venv/bin/python" -c 'import msgpack, numpy, ray, zmq' >&2; then
        rm -rf "$venv"
        plain "no package index can be reached, or Ray does not run here: fleets need it"
        return 1
    fi
}

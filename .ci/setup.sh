# shellcheck shell=bash
# Set-up shared by run.sh and test.sh: packages, configure, build. Sourced, never run.
#
# All messages go to stderr, for stdout belongs to dtplan; none of the commands reads stdin, for that belongs to dtplan too.
: "${root:?physical path of the checkout}"

say() {
    printf 'dtplan: %s\n' "$*" >&2 || true # who closes stderr must not stop a build
}

die() {
    say "$@"
    exit 3
}

has_c_header() {
    printf '#include <stdio.h>\n#include <%s>\n' "$1" | cc -E -x c - >/dev/null 2>&1
}

has_pkg_config() {
    command -v pkg-config >/dev/null && pkg-config --exists "$1"
}

# What is there is tested by use, not by asking dpkg: a library installed by hand counts.
missing_packages() {
    local with_tests=$1
    command -v cc >/dev/null && has_c_header stdlib.h || echo gcc libc6-dev
    command -v cmake >/dev/null || echo cmake
    command -v ninja >/dev/null || echo ninja-build
    command -v pkg-config >/dev/null || echo pkg-config
    has_pkg_config gsl || echo libgsl-dev
    has_pkg_config jansson || echo libjansson-dev
    has_pkg_config inih || echo libinih-dev
    has_pkg_config yaml-0.1 || echo libyaml-dev
    has_pkg_config sqlite3 || echo libsqlite3-dev
    has_c_header csv.h || echo libcsv-dev
    has_pkg_config openblas || echo libopenblas-dev
    if [[ $with_tests == tests ]]; then
        has_pkg_config cmocka || echo libcmocka-dev
    fi
}

# What tests use where it is there, and nothing else needs: charts are drawn by gnuplot, pages looked at in Chromium (which
# Ubuntu has as a snap only, that no container installs), completions asked for in zsh and fish, JSON held against its
# schemas by jsonschema.
optional_packages() {
    [[ $1 == tests ]] || return 0
    command -v gnuplot >/dev/null || echo gnuplot-nox
    command -v zsh >/dev/null || echo zsh
    command -v fish >/dev/null || echo fish
    python3 -c 'import jsonschema' 2>/dev/null || echo python3-jsonschema
    command -v chromium >/dev/null || command -v chromium-browser >/dev/null || grep -qs '^ID=ubuntu' /etc/os-release || echo chromium
}

install_optional_packages() {
    local log=$1
    shift
    if ! command -v apt-get >/dev/null || ! as_root true >>"$log" 2>&1 </dev/null ||
        ! apt install --no-install-recommends "$@" >>"$log" 2>&1; then
        say "without $*: what draws with it is not tested"
    fi
}

# Prefixes a command with what makes it run as root; fails where nothing does. Without a terminal sudo must not ask.
as_root() {
    if [[ $(id -u) == 0 ]]; then
        "$@"
    elif command -v sudo >/dev/null && [[ -t 2 ]]; then
        sudo "$@"
    elif command -v sudo >/dev/null; then
        sudo -n "$@"
    else
        return 1
    fi
}

apt() {
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300 "$@" </dev/null
}

install_packages() {
    local log=$1
    shift
    local by_hand="apt-get update && apt-get install -y --no-install-recommends $*"
    command -v apt-get >/dev/null ||
        die "$* missing, and there is no apt-get; install what these Debian packages hold, then call again"
    as_root true >>"$log" 2>&1 </dev/null ||
        die "$* missing, and you are neither root nor may use sudo; have an administrator run: $by_hand"
    say "installing $*"
    # Stale package lists still often serve; what counts is whether the install works.
    apt update >>"$log" 2>&1 || true
    apt install --no-install-recommends "$@" >>"$log" 2>&1 ||
        fail_with_log "$log" "apt-get could not install all of $*; as root, see why with: $by_hand"
}

fail_with_log() {
    local log=$1
    shift
    say "the last lines of $log:"
    tail -n 25 -- "$log" | sed 's/^/    /' >&2
    die "$@"
}

configure() {
    local preset=$1 build=$2 log=$3
    shift 3
    (cd -- "$root" && cmake --preset "$preset" -B "$build" "$@") >>"$log" 2>&1 </dev/null && return
    # A build folder of another generator, compiler or place, or a configure step cut short: once more from nothing.
    forget_build "$build"
    (cd -- "$root" && cmake --preset "$preset" -B "$build" "$@") >>"$log" 2>&1 </dev/null
}

# Empties a build folder but for the lock that is held and the log that is written.
forget_build() {
    find "$1" -mindepth 1 ! -name .lock ! -name setup.log -delete
}

# set_up PRESET BUILD_FOLDER tests|no-tests TARGET... [-- CMAKE_ARGUMENT...]
# Leaves the targets built. One at a time per build folder; the caller holds the lock until it lets descriptor 9 go.
set_up() {
    local preset=$1 build=$2 with_tests=$3 log=$2/setup.log
    shift 3
    local targets=() packages started=$SECONDS
    while (($#)) && [[ $1 != -- ]]; do
        targets+=("$1")
        shift
    done
    (($#)) && shift
    : >"$log"
    mapfile -t packages < <(missing_packages "$with_tests" | tr ' ' '\n')
    ((${#packages[@]} == 0)) || install_packages "$log" "${packages[@]}"
    mapfile -t packages < <(optional_packages "$with_tests")
    ((${#packages[@]} == 0)) || install_optional_packages "$log" "${packages[@]}"
    say "building in $build (log: setup.log there)"
    configure "$preset" "$build" "$log" "$@" || fail_with_log "$log" "configuring failed"
    cmake --build "$build" --target "${targets[@]}" >>"$log" 2>&1 </dev/null ||
        fail_with_log "$log" "the build failed"
    say "built in $((SECONDS - started)) s"
}

# Makes the build folder and waits for the lock in it.
lock_build() {
    local build=$1
    { mkdir -p -- "$build" && [[ -w $build ]] && exec 9>>"$build/.lock"; } 2>/dev/null ||
        die "cannot write $build; copy the checkout to a folder you may write to and call run.sh or test.sh there"
    if ! flock -n 9; then
        say "waiting for another build in $build"
        flock 9
    fi
}

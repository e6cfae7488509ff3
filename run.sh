#!/usr/bin/env bash
# Runs dtplan, building it first where that is needed: ./run.sh --params 7e9 --gpus 8 --strategy full_shard
#
# The first call installs what is missing (apt) and builds into build/. A later call only asks whether any source changed
# since, which takes some milliseconds, and becomes dtplan. Exit status is dtplan's; 3 when it cannot be built.
set -euo pipefail

self=${BASH_SOURCE[0]}
[[ -L $self ]] && self=$(readlink -f -- "$self")
[[ $self == */* ]] || self=./$self
root=$(CDPATH='' cd -P -- "${self%/*}" && pwd -P)
build=$root/build
stamp=$build/.built

# What executes plans, its CUDA kernels first of all, takes minutes to build: only for who asks, and from then on;
# DTPLAN_CUDA=OFF leaves the kernels out.
needs_exec=no
case ${1-} in run | probe | validate) needs_exec=yes ;; esac

# A build belongs to one place (the data folder's path is in it) and one system (so are its libraries').
os=
[[ -r /etc/os-release ]] && { read -r os </etc/os-release || true; }
identity="$root $os $HOSTTYPE"

sources=()
for candidate in "$root"/{CMakeLists.txt,CMakePresets.json,folders.cmake,model,sim,exec,kernels,reports,cli}; do
    [[ ! -e $candidate ]] || sources+=("$candidate")
done

# Change times, not modification times: they also catch a file replaced by an older one. A folder changes when a file
# comes or goes. The stamp's own time is that of the start of the build, so a source changed meanwhile counts as newer.
is_fresh() {
    [[ -x $build/dtplan && ($needs_exec == no || -x $build/dtplan-exec) ]] && is_of_this_place && [[ -z $(find "${sources[@]}" -newercm "$stamp" -print -quit) ]]
}

is_of_this_place() {
    local built
    [[ -r $stamp ]] && read -r built <"$stamp" && [[ $built == "$identity" ]]
}

# Ninja goes by modification times and would keep an object whose source was replaced by an older file.
has_older_replacement() {
    [[ -n $(find "${sources[@]}" -type f -newercm "$stamp" ! -newer "$stamp" -print -quit) ]]
}

build_dtplan() {
    # shellcheck source=.ci/setup.sh
    source "$root/.ci/setup.sh"
    lock_build "$build"
    if is_fresh; then # another call built it while this one waited
        exec 9>&-
        return
    fi
    if [[ -e $stamp ]] && { ! is_of_this_place || has_older_replacement; }; then
        forget_build "$build"
    fi
    printf '%s\n' "$identity" >"$stamp.new"
    local targets=(dtplan bench manual) cuda=OFF
    if [[ $needs_exec == yes || -x $build/dtplan-exec ]]; then
        targets+=(dtplan-exec)
        cuda=${DTPLAN_CUDA:-AUTO}
    fi
    set_up release "$build" no-tests "${targets[@]}" -- -DDTPLAN_CUDA="$cuda"
    mv -f -- "$stamp.new" "$stamp"
    exec 9>&-
}

is_fresh || build_dtplan
exec "$build/dtplan" "$@"

#!/usr/bin/env bash
# Builds and runs all tests, installing what is missing first: ./test.sh [--sanitize] [--werror] [CTEST ARGUMENTS]
#
#   --sanitize  under AddressSanitizer and UndefinedBehaviorSanitizer
#   --werror    warnings are errors
# What follows goes to ctest, for instance: ./test.sh -R table
# Of lists of layouts of ranks one row in four is tried; DTPLAN_TEST_ROWS=1 tries each (minutes).
set -euo pipefail

self=${BASH_SOURCE[0]}
[[ -L $self ]] && self=$(readlink -f -- "$self")
[[ $self == */* ]] || self=./$self
root=$(CDPATH='' cd -P -- "${self%/*}" && pwd -P)
# shellcheck source=.ci/setup.sh
source "$root/.ci/setup.sh"

preset=debug
build=$root/build-debug
werror=OFF
while (($#)); do
    case $1 in
        --sanitize) preset=asan-ubsan build=$root/build-asan-ubsan ;;
        --werror) werror=ON ;;
        --help | -h)
            sed -n '2,7s/^# \{0,1\}//p' "$root/test.sh"
            exit 0
            ;;
        *) break ;;
    esac
    shift
done

lock_build "$build"
set_up "$preset" "$build" tests all -- -DDTPLAN_WERROR=$werror
exec 9>&-
cd -- "$build"
export ASAN_OPTIONS=${ASAN_OPTIONS-detect_leaks=1:strict_string_checks=1}
export UBSAN_OPTIONS=${UBSAN_OPTIONS-print_stacktrace=1}
export DTPLAN_TEST_ROWS=${DTPLAN_TEST_ROWS-4}
exec ctest --no-tests=error --output-on-failure -j "$(($(nproc) + 1))" "$@" # some wait for what they ended on purpose

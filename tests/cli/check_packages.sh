#!/usr/bin/env bash
# Packages, built and looked at: check_packages.sh SOURCE_TREE
#
# Built by preset package; nothing is installed on this machine: packages are unpacked beside each other, and what they hold
# is used there. lintian, where it is, has the last word. Exit status 77: this machine makes no packages of Debian.
set -euo pipefail

source=$1
command -v dpkg-shlibdeps >/dev/null || { echo "no dpkg-dev here: skipped" && exit 77; }
unset DTPLAN_DATA LD_LIBRARY_PATH
scratch=$(mktemp -d)
trap 'rm -rf -- "$scratch"' EXIT

fail() {
    echo "FAILED: $*"
    exit 1
}

cd -- "$source"
{ cmake --preset package && cmake --build --preset package && rm -f build-package/*.deb build-package/*.tar.gz &&
    cpack --config build-package/CPackConfig.cmake; } >"$scratch/log" 2>&1 || { tail -n 30 "$scratch/log" && fail "building packages"; }
for name in dtplan libdtplan0 libdtplan-dev; do
    package=$(find build-package -maxdepth 1 -name "${name}_*.deb" -print -quit)
    [[ -n $package ]] || fail "no package $name"
    dpkg-deb -x "$package" "$scratch/root"
    dpkg-deb -f "$package" Depends >"$scratch/$name.depends"
    ! command -v lintian >/dev/null || lintian --allow-root --fail-on error "$package" || fail "lintian on $name"
done
grep -q 'libjansson4' "$scratch/dtplan.depends" || fail "dtplan depends on no library: $(cat "$scratch/dtplan.depends")"
grep -q 'dtplan (= ' "$scratch/libdtplan0.depends" || fail "the library does not ask for its catalogues"
grep -q 'libdtplan0 (= ' "$scratch/libdtplan-dev.depends" || fail "the header does not ask for its library"

cd -- "$scratch"
usr=$scratch/root/usr
"$usr/bin/dtplan" plan --model gpt2 --gpus 1 --gpu a10 --strategy ddp >page || fail "the packed dtplan"
grep -q FITS page || fail "the packed dtplan says nothing"
[[ $("$usr/bin/dtplan-exec" --built-with) == host ]] || fail "the packed dtplan-exec"
[[ $(find "$usr/share/man" -name 'dtplan-*.1.gz' | wc -l) -ge 15 ]] || fail "pages of the manual are missing"
zcat "$usr/share/man/man1/dtplan-plan.1.gz" | grep -q 'micro\\-batch' || fail "the page of plan"
[[ -s $usr/share/bash-completion/completions/dtplan && -s $usr/share/doc/dtplan/copyright ]] || fail "completion or copyright"
folder=$(dirname "$(find "$usr/lib" -name libdtplan.so.0)")
cc "$source/cli/library/examples/plan.c" -I "$usr/include" -L "$folder" -ldtplan -o plan
LD_LIBRARY_PATH=$folder ./plan llama-2-7b 8 >out || fail "a program with the packed library"
grep -q 'tokens/s' out || fail "a program with the packed library says nothing"

mkdir "a tarball"
tar -xzf "$source"/build-package/dtplan-*.tar.gz -C "a tarball" --strip-components 1
find "a tarball" -name dtplan -path '*/bin/*' -print -quit >found
"$(cat found)" catalog gpus | grep -q h100-sxm || fail "the tarball's dtplan finds no catalogue"
echo "packages: $(cd -- "$source/build-package" && du -h ./*.deb ./*.tar.gz | tr '\n\t' ', ')"

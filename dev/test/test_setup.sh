#!/usr/bin/env bash
# What scripts/setup.sh installs on a machine that has nothing: apt-get is a stub that notes the packages, and PATH has
# neither a compiler nor make.   dev/test/test_setup.sh
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
. dev/test/harness.sh

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir -p "$folder/bin" "$folder/tree/scripts"
cp scripts/setup.sh "$folder/tree/scripts"
for name in bash cat dirname env mktemp rm sed; do ln -s "$(command -v $name)" "$folder/bin"; done
printf '#!/bin/sh\necho 0\n' >"$folder/bin/id" # root
cat >"$folder/bin/apt-get" <<'END_OF'
#!/bin/sh
case " $* " in *" install "*) echo "${*##* --no-install-recommends }" >>"$PACKAGES" ;; esac
END_OF
chmod +x "$folder"/bin/{id,apt-get}

# installed PURPOSE: the packages in one line; what the script did besides
installed() {
    rm -f "$folder/packages"
    PATH=$folder/bin PACKAGES=$folder/packages PIP_NO_INDEX=1 "$folder/tree/scripts/setup.sh" "$1" \
        >"$folder/said" 2>&1 || { echo "exit status $?:" && cat "$folder/said"; }
    paste -s -d ' ' "$folder/packages"
    [ "$(ls "$folder/tree")" = scripts ] || ls "$folder/tree"
}
report "gpu: make, the C and C++ compilers, cJSON and cmocka, and nothing with pip" "$(
    found=$(installed gpu)
    [ "$found" = "make gcc libc6-dev libcjson-dev g++ libcmocka-dev" ] || echo "$found"
)"
report "build: what the program needs on a CPU" "$(
    found=$(installed build)
    [ "$found" = "make gcc libc6-dev libcjson-dev" ] || echo "$found"
)"
report "refused: another purpose" "$(
    found=$(scripts/setup.sh gpus 2>&1)
    [ "$? $found" = "2 setup: expected build, gpu, train, test, lint, bench, fuzz, aarch64 or peers, found 'gpus'" ] ||
        echo "$found"
)"

end_tests

#!/usr/bin/env bash
# Tests what scripts/setup.sh installs on an empty machine. PATH has no compiler and no make, and apt-get is a stub: it
# writes the names of the packages to a file and reports MEGABYTES as the size of each. The last case is the message of
# a test whose tool is missing.
#   dev/test/test_setup.sh
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
. dev/test/harness.sh

folder=$(mktemp -d) terminal=$(command -v script)
trap 'rm -rf "$folder"' EXIT
mkdir -p "$folder/bin" "$folder/tree/scripts"
cp scripts/setup.sh "$folder/tree/scripts"
for name in bash cat dirname env mktemp rm sed; do ln -s "$(command -v $name)" "$folder/bin"; done
printf '#!/bin/sh\necho 0\n' >"$folder/bin/id" # root
cat >"$folder/bin/apt-get" <<'END_OF'
#!/bin/sh
packages=${*##* --no-install-recommends }
case " $* " in
*" --print-uris "*) for name in ${packages#*install }; do echo "'http://a/$name' $name ${MEGABYTES}000000 x"; done ;;
*" install "*) echo "$packages" >>"$PACKAGES" ;;
esac
END_OF
chmod +x "$folder"/bin/{id,apt-get}
export PACKAGES=$folder/packages PIP_NO_INDEX=1 MEGABYTES=1

# installed PURPOSE [ANSWER]: the packages in one line; what the script did besides. ANSWER is typed on a terminal.
installed() {
    rm -rf "$folder/packages" "$folder/tree/build"
    local status=0 setup="$folder/tree/scripts/setup.sh $1"
    if [ $# -gt 1 ]; then
        PATH=$folder/bin SHELL=/bin/sh "$terminal" -qec "$setup" /dev/null <<<"$2"
    else
        PATH=$folder/bin $setup </dev/null
    fi >"$folder/said" 2>&1 || status=$?
    [ $status -eq 0 ] || { echo "exit status $status:" && cat "$folder/said"; }
    [ ! -f "$folder/packages" ] || paste -s -d ' ' "$folder/packages"
    [ "$(ls "$folder/tree")" = scripts ] || ls "$folder/tree"
}
build="make gcc libc6-dev libcjson-dev" mpi="openmpi-bin libopenmpi-dev"
needed="$build g++ python3 procps libcmocka-dev"
report "gpu: make, the C and C++ compilers, cJSON and cmocka, and nothing with pip" "$(
    equal "$(installed gpu)" "$build g++ libcmocka-dev"
)"
report "build: what the program needs on a CPU" "$(equal "$(installed build)" "$build")"
report "test: the compilers, cJSON, cmocka, Python and MPI, and nothing with pip" "$(
    equal "$(installed test)" "$needed $mpi"
)"
report "all: without a question the packages of test, the tools of every other test, and Python's packages" "$(
    found=" $(MEGABYTES=100 installed all | head -n 1) "
    for name in $needed $mpi curl iproute2 help2man dpkg-dev lintian clang g++-11 qemu-user; do
        [[ $found == *" $name "* ]] || echo "$name is missing in$found"
    done
    says "$folder/said" "setup: installing tiktoken, transformers, gguf, tensorboard and wandb with pip into build/py"
)"
export MEGABYTES=24 # MPI makes 240 of 192 MB
without="setup: a download of 240 MB takes a yes on a terminal; going on without $mpi"
report "test, over 200 MB without a terminal: goes on without MPI, and says so" "$(
    equal "$(installed test)" "$needed"
    says "$folder/said" "$without"
)"
if [ -n "$terminal" ]; then
    report "test, over 200 MB on a terminal: a yes downloads them, and anything else leaves MPI out" "$(
        equal "$(installed test y)" "$needed $mpi"
        says "$folder/said" "setup: download 240 MB? [y/N]"
        equal "$(installed test '')" "$needed"
        says "$folder/said" "$without"
    )"
else
    skip script 1 "the question on a terminal"
fi
report "test, over 200 MB even without MPI: installs nothing, and names the packages" "$(
    MEGABYTES=30 installed test >"$folder/found"
    says "$folder/found" "exit status 1:"
    says "$folder/found" "setup: a download of 300 MB takes a yes on a terminal; install $needed $mpi (Debian's names)"
    [ ! -e "$folder/packages" ] || cat "$folder/packages"
)"
report "refused: another purpose" "$(
    found=$(scripts/setup.sh gpus 2>&1)
    equal "$? $found" \
        "2 setup: expected build, gpu, train, test, all, lint, bench, fuzz, aarch64 or peers, found 'gpus'"
)"
report "a test without its tool says what it skips" "$(
    equal "$(bash -c '. dev/test/harness.sh && skip lintian 2 "the package"' dev/test/test_x.sh)" \
        "skipped: test_x.sh (the package) needs lintian"$'\n'"[  SKIPPED ] 2 test(s)."
)"

end_tests

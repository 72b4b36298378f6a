#!/usr/bin/env bash
# Tests what scripts/setup.sh installs on an empty machine. PATH has no compiler and no make, and apt-get is a stub: it
# writes the names of the packages to a file and reports MEGABYTES as the size of each.
#   dev/test/test_setup.sh
. "$(dirname "$0")/harness.sh"

make_scratch
terminal=$(command -v script)
mkdir -p "$scratch/bin" "$scratch/tree/scripts"
cp scripts/setup.sh "$scratch/tree/scripts"
for name in bash cat dirname env mktemp rm sed true; do ln -s "$(type -P $name)" "$scratch/bin"; done
printf '#!/bin/sh\necho 0\n' >"$scratch/bin/id" # root
cat >"$scratch/bin/apt-get" <<'END_OF'
#!/bin/sh
packages=${*##* --no-install-recommends }
case " $* " in
*" --print-uris "*) for name in ${packages#*install }; do echo "'http://a/$name' $name ${MEGABYTES}000000 x"; done ;;
*" install "*) echo "$packages" >>"$PACKAGES" ;;
esac
END_OF
chmod +x "$scratch"/bin/{id,apt-get}
# makes an environment whose Python fails, in place of a module that takes seconds
mkdir "$scratch/modules" && cat >"$scratch/modules/venv.py" <<'END_OF'
import os, sys
os.makedirs(sys.argv[1] + "/bin")
os.symlink("/bin/false", sys.argv[1] + "/bin/python3")
END_OF
export PACKAGES=$scratch/packages PYTHONPATH=$scratch/modules MEGABYTES=1
# installed PURPOSE [ANSWER]: the packages in one line; what the script did besides. ANSWER is typed on a terminal.
installed() {
    rm -rf "$scratch/packages" "$scratch/tree/build"
    local status=0 setup="$scratch/tree/scripts/setup.sh $1"
    if [ $# -gt 1 ]; then
        PATH=$scratch/bin SHELL=/bin/sh "$terminal" -qec "$setup" /dev/null <<<"$2"
    else
        PATH=$scratch/bin $setup </dev/null
    fi >"$scratch/said" 2>&1 || status=$?
    [ $status -eq 0 ] || { echo "exit status $status:" && cat "$scratch/said"; }
    [ ! -f "$scratch/packages" ] || paste -s -d ' ' "$scratch/packages"
    [ "$(ls "$scratch/tree")" = scripts ] || ls "$scratch/tree"
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
    for name in $needed $mpi curl clang g++-11 qemu-user; do
        [[ $found == *" $name "* ]] || echo "$name is missing in$found"
    done
    matches "$scratch/said" "^setup: [1-9][0-9]*00 MB to download$"
    says "$scratch/said" "setup: installing tiktoken, transformers, gguf, tensorboard and wandb with pip into build/py"
)"
export MEGABYTES=24 # MPI makes 240 of 192 MB
without="setup: a download of 240 MB takes a yes on a terminal; going on without $mpi"
report "test, over 200 MB without a terminal: goes on without MPI, and says so" "$(
    equal "$(installed test)" "$needed"
    says "$scratch/said" "$without"
)"
if [ -n "$terminal" ]; then
    report "test, over 200 MB on a terminal: a yes downloads them, and anything else leaves MPI out" "$(
        equal "$(installed test y)" "$needed $mpi"
        says "$scratch/said" "setup: download 240 MB? [y/N]"
        equal "$(installed test '')" "$needed"
        says "$scratch/said" "$without"
    )"
else
    skip script 1 "the question on a terminal"
fi

# ---- a user

export MEGABYTES=1
printf '#!/bin/sh\necho 1000\n' >"$scratch/bin/id"
# refuses PURPOSE WORDS: nothing is installed; the last line is that of an administrator
refuses() {
    equal "$(installed "$1" | head -n 1)" "exit status 1:"
    says "$scratch/said" "setup: installing takes root, and $2; as root, run this line, which installs what is missing"
    [ ! -e "$scratch/packages" ] || cat "$scratch/packages"
}
line="apt-get update && apt-get install -y --no-install-recommends"
report "a user without sudo: the line that root needs, alone and last" "$(
    refuses build "there is no sudo"
    equal "$(tail -n 1 "$scratch/said")" "$line $build"
    refuses train "there is no sudo"
    equal "$(tail -n 1 "$scratch/said")" "$line $build bible-kjv curl"
    refuses aarch64 "there is no sudo"
    matches "$scratch/said" "^dpkg --add-architecture arm64 && $line $build gcc-aarch64-linux-gnu "
)"
cat >"$scratch/bin/sudo" <<'END_OF'
#!/bin/sh
echo "$*" >>"$PACKAGES.sudo"
[ "$1" = -n ] && shift
exec "$@"
END_OF
chmod +x "$scratch/bin/sudo"
report "a user with sudo: it installs, and without a terminal is told to ask nothing" "$(
    equal "$(installed build)" "$build"
    equal "$(grep -vc '^-n ' "$scratch/packages.sudo")" 0
)"
rm "$scratch/bin/apt-get"
report "without apt-get: the packages that are missing" "$(
    equal "$(installed build | head -n 1)" "exit status 1:"
    equal "$(tail -n 1 "$scratch/said")" \
        "setup: there is no apt-get here; install $build (Debian's names) and run this again"
)"

end_tests

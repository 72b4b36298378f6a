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
case " $* " in
*" --print-uris "*) echo "'http://a/b.deb' b.deb ${MEGABYTES:-1}000000 SHA256:0" ;;
*" install "*) echo "${*##* --no-install-recommends }" >>"$PACKAGES" ;;
esac
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
report "test: the compilers, cJSON, cmocka, Python and MPI" "$(
    found=$(installed test)
    [ "$found" = "make gcc libc6-dev libcjson-dev g++ python3 libcmocka-dev openmpi-bin libopenmpi-dev" ] ||
        echo "$found"
)"
report "all: what every test and the linters use too" "$(
    found=" $(installed all | head -n 1) "
    rm -rf "$folder/tree/build" # of pip, which finds nothing
    for package in make g++ python3 libcmocka-dev clang-tidy shellcheck openmpi-bin clang qemu-user; do
        [[ $found == *" $package "* ]] || echo "no $package in $found"
    done
    [[ $found != *dnnl* && $found != *aarch64* ]] || echo "$found"
)"
report "a download of more than 200 MB is asked for on a terminal, and not without one" "$(
    for row in "150 n no yes" "300 n yes no" "300 y yes yes"; do
        read -r MEGABYTES answer asked goes <<<"$row"
        export MEGABYTES
        rm -f "$folder/packages"
        PACKAGES=$folder/packages python3 - "$folder" "$answer" >"$folder/said" 2>&1 <<'PYTHON'
import os, sys
pid, terminal = os.forkpty()
if pid == 0:
    os.environ["PATH"] = sys.argv[1] + "/bin"
    os.execve(sys.argv[1] + "/tree/scripts/setup.sh", ["setup.sh", "build"], os.environ)
os.write(terminal, sys.argv[2].encode() + b"\n")
said = b""
try:
    while part := os.read(terminal, 4096):
        said += part
except OSError:
    pass
print(said.decode())
PYTHON
        found=no went=no
        ! grep -qF "downloads $MEGABYTES MB. Go on?" "$folder/said" || found=yes
        [ ! -s "$folder/packages" ] || went=yes
        [ "$found $went" = "$asked $goes" ] || { echo "$row: asked $found, installed $went" && cat "$folder/said"; }
    done
    MEGABYTES=300
    found=$(installed build)
    [ "$found" = "make gcc libc6-dev libcjson-dev" ] || echo "$found"
)"
report "refused: another purpose" "$(
    found=$(scripts/setup.sh gpus 2>&1)
    [ "$? $found" = "2 setup: expected build, gpu, train, test, all, lint, bench, fuzz, aarch64 or peers, found 'gpus'" ] ||
        echo "$found"
)"

end_tests

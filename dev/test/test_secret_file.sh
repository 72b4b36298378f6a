#!/usr/bin/env bash
# The flags of the rendezvous: a secret that is missing, open to others or too short, and a build without libcrypto.
# dev/test/test_handshake.c tests the handshake.
#   TRAIN_GPT2=./train_gpt2 dev/test/test_secret_file.sh
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
. dev/test/harness.sh

trainer=$(realpath "${TRAIN_GPT2:-./train_gpt2}")
folder=$(mktemp -d)
out=$folder/out
trap 'rm -rf "$folder"' EXIT
head -c 4096 README.md >"$folder/my.txt"
join=(-i "$folder/my.txt" -e l1h1c8 -b 1 -t 8 -pn 2 -pr 1 --device cpu)

# refuses SENTENCE FLAG...: bad input, in one sentence with these words
refuses() {
    local status
    "$trainer" "${join[@]}" "${@:2}" >"$out" 2>&1
    status=$?
    [ $status -eq 2 ] || echo "exit status $status, expected 2"
    [[ $(grep -c '^train_gpt2: ' "$out") == 1 && $(cat "$out") == *"$1"* ]] || echo "expected '$1'"
}

if [[ $("$trainer" --version) == *OpenSSL* ]]; then
    report "the command that the error names makes a secret that is taken" "$(
        refuses "make one with (umask 077; head -c 32 /dev/urandom | base64 >secret) and give" -pi tcp -ps localhost
        command=$(sed -n 's/.*make one with \((.*)\) and give.*/\1/p' "$out")
        cd "$folder" && bash -c "$command"
        [ "$(stat -c %a secret)" = 600 ] || echo "mode $(stat -c %a secret), expected 600"
        refuses "but this run is on CPUs" -pi tcp -ps localhost --secret-file secret
    )"
    report "a secret that others may read" "$(
        head -c 32 /dev/zero >"$folder/open" && chmod 644 "$folder/open"
        refuses "has mode 0644, so other users may know the secret" -pi tcp -ps localhost --secret-file "$folder/open"
    )"
    report "no such secret" "$(
        refuses "none cannot be read (No such file or directory)" -pi tcp -ps localhost --secret-file "$folder/none"
    )"
    report "-pi fs takes no secret" "$(refuses "but this run is on CPUs" -pi fs -pf "$folder")"
fi
report "one rank, and --plan, need no secret" "$(
    "$trainer" "${join[@]}" -pi tcp -ps localhost --plan >"$out" 2>&1 || echo "--plan failed"
    "$trainer" "${join[@]}" -pi tcp -ps localhost -pn 1 -pr 0 -x 1 -v 0 -s 0 >"$out" 2>&1 || echo "one rank failed"
)"

cat >"$folder/without.c" <<'END_OF_PROGRAM'
#include "llmc/parallel/comm_open.h"
int main(int argc, char **argv) {
    const CommInit init = argc > 1 ? COMM_INIT_TCP : COMM_INIT_FILE;
    const CommOptions options = {init, 2, 1, 1, "localhost", ".", "job", 5, argv[0]};
    comm_open_for(&cpu_device, &options, comm_single(&cpu_device));
    return 0;
}
END_OF_PROGRAM
trainer=$folder/without join=()
report "a build without libcrypto refuses fs and tcp" "$(
    "${CC:-cc}" -std=gnu11 -D_GNU_SOURCE -I. -DPRECISION_FP32 -fopenmp -Wall -Wextra -Werror -o "$trainer" \
        "$folder/without.c" -lm -lpthread 2>&1
    for flag in "" tcp; do
        refuses "libcrypto, but this program was built without it: install libssl-dev and run make again" $flag
    done
)"

end_tests

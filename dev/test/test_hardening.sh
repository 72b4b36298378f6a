#!/usr/bin/env bash
# Reads the built program with readelf: it is hardened (scripts/hardening.mk), and neither the program nor its sources
# call a shell.   dev/test/test_hardening.sh [PROGRAM]
. "$(dirname "$0")/harness.sh"

program=${1:-./train_gpt2}
if ! command -v readelf >/dev/null || [ "$(head -c 4 "$program" | tail -c 3)" != ELF ]; then
    skip "readelf (binutils), and a program of Linux" 8
    exit 0
fi

# the functions of libraries that the program calls, without their versions
undefined=$(readelf --dyn-syms --wide "$program" | awk '$7 == "UND" { sub(/@.*/, "", $8); print $8 }')
# said OPTION PATTERN: silent if readelf's output has the pattern
said() { grep -qE -- "$2" <<<"$(readelf --wide "$1" "$program")" || echo "readelf $1 does not show '$2'"; }
checked() { # __NAME_chk, which checks the room at the destination, is called in the place of NAME
    for name in memcpy snprintf fread; do
        grep -qx "__${name}_chk" <<<"$undefined" || echo "no __${name}_chk"
    done
}
# the program, if the build has the option OPTION of scripts/hardening.mk
hardened() { # OPTION NAME COMMAND...: COMMAND prints the trouble
    if grep -qsE "hardening=(.* )?$1" build/flags; then
        report "$2" "$("${@:3}")"
    else
        skip "a program built with $1 (HARDENING=1, and a compiler that knows it)" 1 "$2"
    fi
}
loaded_anywhere() { said -h 'Type: +DYN' && said -d '\(FLAGS_1\).* PIE'; }
tables_are_closed() { said -d 'BIND_NOW' && said -l 'GNU_RELRO'; }
guards_its_stack() { grep -qx __stack_chk_fail <<<"$undefined" || echo "no __stack_chk_fail"; }

hardened pie "the program is loaded at a random address" loaded_anywhere
hardened relro "the tables of functions are read-only before main" tables_are_closed
hardened relro "the stack holds no code" said -l 'GNU_STACK( +0x[0-9a-f]+){5} RW '
hardened stack-protector "functions check their stack" guards_its_stack
hardened fortify "calls of the C library check the room at the destination" checked

# A program runs another with execve and fixed arguments: never through a shell, and never by a search of PATH.
shells='system|popen|wordexp|execl|execlp|execle|execvp|execvpe|posix_spawnp'
report "the program imports no function that starts a shell" "$(! grep -xE "$shells" <<<"$undefined")"
sources() { find llmc train_gpt2.cu -name '*.h' -o -name '*.cu' -o -name '*.cuh'; }
report "the sources call no function that starts a shell, and name no shell" "$(
    ! sources | xargs grep -nE "\b($shells) *\(|/bin/(ba|da|z)?sh\b"
)"
report "only the self-check starts a program, and it is its own" "$(
    sources | xargs grep -lE '\b(execve?|execveat|fexecve|posix_spawn|v?fork) *\(' |
        grep -vx 'llmc/self_check/self_check.h'
    grep -q '"/proc/self/exe"' llmc/self_check/self_check.h || echo "it starts a program that is not its own"
)"

end_tests

#!/usr/bin/env bash
# -lg: the readings of the emulated GPU, through an NVML of this test.
#   TRAINER=./train_gpt2 EMULATED=build/emulated/train_gpt2 dev/test/test_gpu_log.sh
set -uo pipefail
# shellcheck source=dev/test/harness.sh
. "$(dirname "$0")/harness.sh"

trainer=$(realpath "${TRAINER:-./train_gpt2}")
emulated=$(realpath "${EMULATED:-build/emulated/train_gpt2}")
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive LC_ALL=C TRAIN_GPT2_PICKS=
scratch=$(mktemp -d) out=$scratch/out
trap 'rm -rf "$scratch"' EXIT
cd "$scratch" || exit 1
seq 1 1500 >text

# Types and constants are those of NVML's API reference. Each call is a line of the file $NVML_CALLS; a wrong argument
# is an error. -D: what the library lacks, or which call fails.
cat >nvml.c <<'END'
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
typedef struct nvmlDevice_st *nvmlDevice_t;
typedef enum {
    NVML_SUCCESS,
    NVML_ERROR_UNINITIALIZED,
    NVML_ERROR_INVALID_ARGUMENT,
    NVML_ERROR_NOT_SUPPORTED
} nvmlReturn_t;
typedef enum { NVML_CLOCK_GRAPHICS, NVML_CLOCK_SM } nvmlClockType_t;
typedef enum { NVML_TEMPERATURE_GPU } nvmlTemperatureSensors_t;
typedef struct { unsigned long long total, free, used; } nvmlMemory_t;
static struct nvmlDevice_st { int used; } gpu;
static int started;
static nvmlReturn_t call(const char *name, int right) {
    FILE *file = fopen(getenv("NVML_CALLS"), "a");
    fprintf(file, "%s%s\n", name, right ? "" : ": wrong argument");
    fclose(file);
    return !started ? NVML_ERROR_UNINITIALIZED : right ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}
nvmlReturn_t nvmlInit_v2(void) {
    started = 1;
    call("init", 1);
#ifdef NO_INIT
    return NVML_ERROR_NOT_SUPPORTED;
#endif
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlShutdown(void) { return call("shutdown", 1); }
nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *id, nvmlDevice_t *device) {
    *device = &gpu;
#ifdef OTHER_GPU
    return call("find", 0);
#endif
    return call("find", strcmp(id, "0000:51:0d.0") == 0);
}
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    memory->total = 80ull << 30;
    memory->used = (61834ull << 20) + (1 << 19);
    memory->free = memory->total - memory->used;
    return call("memory", device == &gpu);
}
nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned *clock) {
    *clock = 1980;
    return call("clock", device == &gpu && type == NVML_CLOCK_SM);
}
#ifndef NO_TEMPERATURE
nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, nvmlTemperatureSensors_t sensor, unsigned *temperature) {
    *temperature = 61;
    return call("temperature", device == &gpu && sensor == NVML_TEMPERATURE_GPU);
}
#endif
nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned *power) {
    *power = 652300;
#ifdef NO_POWER
    return NVML_ERROR_NOT_SUPPORTED;
#endif
    return call("power", device == &gpu);
}
END
# library FOLDER OPTION...: the stub, in a folder for LD_LIBRARY_PATH
library() {
    mkdir "$1"
    ${CC:-cc} -shared -fPIC "${@:2}" -o "$1/libnvidia-ml.so.1" nvml.c || exit
}
library whole
library no_power -DNO_POWER
library no_init -DNO_INIT
library other_gpu -DOTHER_GPU
library old -DNO_TEMPERATURE
mkdir broken && echo "no library" >broken/libnvidia-ml.so.1

# train LIBRARY RUN ARGUMENT...: 6 steps on the emulated GPU with one of the libraries
train() {
    rm -f calls
    LD_LIBRARY_PATH=$scratch/$1 NVML_CALLS=$scratch/calls "$emulated" -i text -e l1h2c16 -b 2 -t 16 -v 0 -s 0 -x 6 \
        --device cuda -o "$2" "${@:3}" >"$out" 2>&1 </dev/null || echo "exit status $?"
}
says() { grep -qF -- "$1" "$out" || echo "expected '$1'"; }
same() { [ "$1" = "$2" ] || printf 'expected:\n%s\nfound:\n%s\n' "$1" "$2"; }
silent() { ! grep -F -- "$1" "$out"; }
# steps with the fields at the end of their line
steps_with() {
    sed -nE "s/^\{\"step\":([0-9]+),.*,\"tokens_left\":[0-9]+,(\"mfu\":[^,]*,)?$2\}/\1/p" "$1/metrics.jsonl" |
        paste -sd ' '
}
memory='"gpu_memory_mib":61834.5' clock='"gpu_clock_mhz":1980' power='"gpu_power_w":652.3' heat='"gpu_temperature_c":61'

report "by default each step has readings of the GPU with this process's bus id" "$(
    train whole default
    says "| 61834 MiB 1980 MHz 652 W 61 C |"
    same "1 2 3 4 5 6" "$(steps_with default "$memory,$clock,$power,$heat")"
    same $'init\nfind' "$(head -n 2 calls)"
    same "shutdown" "$(tail -n 1 calls)"
    same $'clock\nmemory\npower\ntemperature' "$(sed '1,2d; $d' calls | sort -u)"
    silent "shows nothing"
)"
report "-lg 2: every second step, one reading each" "$(
    train whole every_2 -lg 2
    same "2 4 6" "$(steps_with every_2 "$memory,$clock,$power,$heat")"
    same 3 "$(grep -c gpu_ every_2/metrics.jsonl)"
    for name in memory clock power temperature; do same "3 $name" "$(grep -c "^$name\$" calls) $name"; done
)"
report "-lg 0: the library is not used" "$(
    train whole off -lg 0
    silent MiB\ 1980
    ! grep gpu_ off/metrics.jsonl
    [ ! -e calls ] || cat calls
)"
report "a GPU that does not report its power" "$(
    train no_power no_power_run
    says "| 61834 MiB 1980 MHz 61 C |"
    same "1 2 3 4 5 6" "$(steps_with no_power_run "$memory,$clock,$heat")"
)"
losses() { sed -nE 's/.*"loss":([^,]*),.*/\1/p' "$1/metrics.jsonl"; }
# without LIBRARY WORDS: a run without readings, and its note if -lg was given
without() {
    report "no readings, and no error: $2" "$(
        train "$1" "$1_default"
        silent "shows nothing"
        same "$(losses default)" "$(losses "$1_default")"
        ! grep gpu_ "$1_default/metrics.jsonl"
        train "$1" "$1_given" -lg 3
        grep -qE -- "^note      -lg 3 shows nothing: $2" "$out" || echo "expected the note"
        same "$(losses default)" "$(losses "$1_given")"
    )"
}
without broken "libnvidia-ml.so.1 could not be opened$"
without old "libnvidia-ml.so.1 is too old$"
without no_init "NVML did not start$"
without other_gpu "NVML does not know this GPU$"
report "a library that knows another GPU is shut down" "$(same $'init\nfind: wrong argument\nshutdown' "$(cat calls)")"
report "on a CPU there are no readings, and a note if -lg was given" "$(
    for flags in "" "-lg 1"; do
        rm -f calls
        # shellcheck disable=SC2086  # two words
        LD_LIBRARY_PATH=$scratch/whole NVML_CALLS=$scratch/calls "$trainer" -i text -e l1h2c16 -b 2 -t 16 -v 0 -s 0 \
            -x 2 --device cpu $flags >"$out" 2>&1 </dev/null || echo "exit status $?"
        [ ! -e calls ] || cat calls
        [ -n "$flags" ] || silent "shows nothing"
    done
    says "note      -lg 1 shows nothing: the run is on a CPU"
)"
end_tests

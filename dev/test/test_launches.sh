#!/usr/bin/env bash
# Does every launch fit the GPUs of doc/gpu.md?   dev/test/test_launches.sh
# A block has at most 65,536 registers, of which a warp takes a multiple of 256; the threads of __launch_bounds__; and
# the shared memory of its architecture, static and dynamic, besides the KB that CUDA reserves for each block.
# test_ops makes the launches in the emulator with this shared memory; no kernel runs. Registers and static shared
# memory are in the output of ptxas that dev/test/test_nvcc.sh saves. Needs nvcc; else it is skipped.
. "$(dirname "$0")/harness.sh"
bf16=build/emulated/test_ops_bf16 fp32=build/emulated/test_ops launches=$PWD/build/ptx/launches
for needed in nvcc $bf16 $fp32; do command -v "$needed" >/dev/null || { skip "$needed" 2 && exit; }; done
for said in build/nvcc/{BF16,FP32}; do
    [ -n "$(find llmc train_gpt2.cu -newer "$said" -type f 2>&1)" ] || continue
    skip "$said of these sources: dev/test/test_nvcc.sh" 2 && exit
done

# measured PRECISION PROGRAM ARCHITECTURE:CODE:KIB...: lines of bounds, code and launches. CODE: the machine code of
# these that runs on the architecture
measured() {
    local of sm kib
    ptx_of "build/ptx/nvcc_$1_sm_90" train_gpt2.cu "$1" sm_90 | sed 's/^/failed /'
    awk '/\.entry/ { sub(/\(.*/, ""); kernel = $NF }
        /^\.maxntid/ { print "bounds", kernel, $2 + 0 }' "build/ptx/nvcc_$1_sm_90"
    awk -F "'" '/Compiling entry function/ { kernel = $2; sm = substr($4, 4) }
        match($0, /Used [0-9]+/) { printf "code %s %s %d", kernel, sm, substr($0, RSTART + 5) }
        /Used [0-9]+/ { print "", match($0, /[0-9]+ bytes smem/) ? substr($0, RSTART) + 0 : 0 }' "build/nvcc/${1^^}"
    for of in "${@:3}"; do
        IFS=: read -r sm _ kib <<<"$of"
        rm -f "$launches"
        SIMT_CAPABILITY=$sm SIMT_SHARED_KIB=$kib SIMT_LAUNCHES=$launches "$2" plainer_kernels &>"$launches.out" ||
            echo "failed SIMT_CAPABILITY=$sm SIMT_SHARED_KIB=$kib $2 plainer_kernels"
        awk -v to="${of//:/ }" '$2 != "ptx" { print "launch", $1, to, $2, $3 }' "$launches"
    done
}
judge() { # the same: each launch that does not fit
    measured "$@" | awk -v precision="$1" '
        function wrong(what) { print $2 ": " precision " for sm_" $3 ": " what }
        $1 == "failed" { print }
        $1 == "bounds" { bounds[$2] = $3 }
        $1 == "code" { registers[$2, $3] = $4; static[$2, $3] = $5; kernels[$2] }
        $1 != "launch" { next }
        { code = $2 SUBSEP $4; launched[$2] = 1; n++ }
        !(code in registers) { wrong("ptxas printed nothing of it"); next }
        { used = int(($6 + 31) / 32) * int((registers[code] * 32 + 255) / 256) * 256; bytes = static[code] + $7 }
        used > 65536 { wrong(used " registers of " $6 " threads, expected 65536 at most") }
        $6 > (most = $2 in bounds ? bounds[$2] : 1024) { wrong($6 " threads, expected " most " at most") }
        bytes > $5 * 1024 { wrong(bytes " bytes of shared memory, expected " $5 * 1024 " at most") }
        END {
            for (kernel in kernels) { if (!launched[kernel]) { print kernel ": " precision ": no launch is known" } }
            if (!n) { print precision ": no launches" }
        }' | c++filt -p
}
report "every launch in bf16 fits" "$(judge bf16 $bf16 80:80:163 86:80:99 89:80:99 90:90:227 100:100:227 120:120:99)"
report "every launch in fp32 fits" \
    "$(judge fp32 $fp32 75:75:64 80:80:163 86:80:99 89:80:99 90:90:227 100:100:227 120:120:99)"
end_tests

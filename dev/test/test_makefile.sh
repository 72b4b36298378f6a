#!/usr/bin/env bash
# The precision and the architectures that make chooses for a GPU, the CPU of a build, its hardening, and where nvcc and
# CUDA's libraries are. nvidia-smi and nvcc are stubs, and make only prints its commands, in a copy of the Makefile. An
# installed nvcc links one program.   dev/test/test_makefile.sh
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
. dev/test/harness.sh

nvcc=$(command -v nvcc)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir -p "$folder"/{bin,dev/test,dev/bench,dev/fuzz,llmc/run,scripts}
cp Makefile "$folder"
cp dev/test/tests.mk "$folder/dev/test"
cp dev/bench/bench.mk "$folder/dev/bench"
cp dev/fuzz/fuzz.mk "$folder/dev/fuzz"
cp scripts/found.sh scripts/*.mk "$folder/scripts"
touch "$folder/train_gpt2.cu" "$folder/llmc/run/portable.c"

cat >"$folder/bin/nvidia-smi" <<'END_OF'
#!/bin/sh
[ -n "$STUB_GPU" ] && [ "$3" = --query-gpu=name,compute_cap ] && echo "$STUB_GPU"
END_OF
cat >"$folder/bin/nvcc" <<'END_OF'
#!/bin/sh
case $* in
--version) echo "Cuda compilation tools, release ${STUB_RELEASE:-12.4}, V12.4.1" ;;
*" -E -include nccl.h "*-) echo "# 0 \"/tmp/$$-stdin\"" ;;
--list-gpu-code) printf 'sm_%s\n' 50 75 80 86 90 ;;
*_FORTIFY_SOURCE=3) exit "${STUB_LEVEL_3:-0}" ;;
*_FORTIFY_SOURCE=2) ;;
*) exit 1 ;;
esac
END_OF
chmod +x "$folder"/bin/*

# made STATUS GPU WORD...: what `make WORD...` would do on a machine with this GPU. Variables of `make test MARCH=...`
# do not reach it.
made() {
    local status=0
    (cd "$folder" && env -i PATH="$folder/bin:$PATH" STUB_GPU="$2" STUB_LEVEL_3="${STUB_LEVEL_3:-}" \
        STUB_RELEASE="${STUB_RELEASE:-}" CUDA_HOME="${CUDA_HOME:-}" make -n \
        "${target:-train_gpt2}" "${@:3}" >said 2>&1) || status=$?
    [ "$status" -eq "$1" ] || { echo "exit status $status, expected $1:" && tail -n 3 "$folder/said"; }
}
has() { grep -qF -- "$1" "$folder/said" || { echo "expected '$1' in:" && tail -n 6 "$folder/said"; }; }
lacks() { ! grep -F -- "$1" "$folder/said"; }

report "a GPU before sm_80 gets fp32" "$(made 0 "Tesla T4, 7.5" && has -arch=sm_75 && has -DPRECISION_FP32)"
report "a GPU from sm_80 on gets bf16" "$(made 0 "NVIDIA H100, 9.0" && has -arch=sm_90 && has -DPRECISION_BF16)"
report "an nvcc older than 12.4 builds, and is called that" "$(
    made 0 "NVIDIA H100, 9.0" && lacks "older than"
    for STUB_RELEASE in 11.8 12.3; do made 0 "NVIDIA H100, 9.0" && has "$STUB_RELEASE (older than 12.4"; done
)"
report "a build for CPUs is fp32" "$(made 0 "NVIDIA H100, 9.0" DEVICE=cpu && lacks -arch && has -DPRECISION_FP32)"
report "a bf16 build for CPUs is called slower than fp32, and names -f 2; other builds get no such note" "$(
    made 0 "" DEVICE=cpu PRECISION=bf16 && has "PRECISION=bf16 stores bf16, computes in fp32, and is slower than fp32;"
    has "build with PRECISION=fp32 and train with -f 2"
    made 0 "" DEVICE=cpu PRECISION=fp32 && lacks "-f 2"
    made 0 "NVIDIA H100, 9.0" PRECISION=bf16 && lacks "-f 2"
)"
report "words of nvidia-smi that name no GPU: a build for CPUs" "$(
    made 0 "No devices were found" && lacks -arch && has -DPRECISION_FP32
)"
report "refused: bf16 for a GPU before sm_80" "$(
    made 2 "Tesla T4, 7.5" PRECISION=bf16
    has "needs a GPU of compute capability 8.0 or more, and this is a Tesla T4, 7.5: run make PRECISION=fp32"
)"
report "without a GPU: the architectures that nvcc knows, sm_75 in fp32 alone" "$(
    made 0 "" DEVICE=cuda PRECISION=fp32
    has "-gencode arch=compute_75,code=sm_75 -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=sm_90 -X"
    made 0 "" DEVICE=cuda
    has "-DPRECISION_BF16"
    has "-lineinfo -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=sm_90 -Xcompiler"
)"

protect=-fstack-protector-strong
report "every build is hardened, whatever CFLAGS says" "$(
    made 0 "" DEVICE=cpu CFLAGS=-O2
    has "$protect -fPIE -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE="
    has "-pie -Wl,-z,relro -Wl,-z,now -Wl,-z,noexecstack"
    made 0 "" DEVICE=cuda
    has "-Xcompiler $protect -Xcompiler -fPIE -Xcompiler -U_FORTIFY_SOURCE -Xcompiler -D_FORTIFY_SOURCE="
    has '-Xcompiler -pie -Xcompiler -Wl\\,-z\\,relro -Xcompiler -Wl\\,-z\\,now -Xcompiler -Wl\\,-z\\,noexecstack'
)"
report "no _FORTIFY_SOURCE without optimization and with sanitizers; the rest of the hardening stays" "$(
    for flags in -g -O0 '-O2 -O0' '-O2 -fsanitize=address'; do
        made 0 "" DEVICE=cpu CFLAGS="$flags"
        has "$protect"
        lacks _FORTIFY_SOURCE
    done
)"
found() { sed -n 's/^hardening  //p' "$folder/said"; }
report "HARDENING=0 leaves the hardening out" "$(
    made 0 "" DEVICE=cpu HARDENING=0 && lacks "$protect" && lacks FORTIFY && lacks -pie
    [ "$(found)" = "turned off" ] || found
    made 0 "" DEVICE=cuda HARDENING=0 && lacks "$protect" && lacks FORTIFY && lacks -pie
)"
# cc_without OPTION: a compiler that refuses options that begin with OPTION
cc_without() {
    printf '#!/bin/sh\ncase " $*" in *" %s"*) exit 1 ;; esac\nexec cc "$@"\n' "$1" >"$folder/bin/old_cc"
    chmod +x "$folder/bin/old_cc"
}
report "level 2 for a compiler that does not know level 3; the rest of the hardening without any level" "$(
    cc_without -D_FORTIFY_SOURCE=3
    made 0 "" DEVICE=cpu CC=old_cc && has -D_FORTIFY_SOURCE=2
    cc_without -D_FORTIFY_SOURCE
    made 0 "" DEVICE=cpu CC=old_cc && lacks FORTIFY_SOURCE && has "$protect -fPIE" && has "-pie -Wl,-z,relro"
    [ "$(found)" = "stack-protector pie relro (old_cc or its linker does not know: fortify)" ] || found
)"
report "a build for GPUs has the level that nvcc knows, whatever the C compiler knows" "$(
    cc_without -D_FORTIFY_SOURCE=3
    made 0 "" DEVICE=cuda CC=old_cc && has -D_FORTIFY_SOURCE=3
    export STUB_LEVEL_3=1
    made 0 "" DEVICE=cuda && has -D_FORTIFY_SOURCE=2
    [[ $(found) == "fortify-2 "* ]] || found
)"
report "each option that a compiler does not know is left out alone, and named" "$(
    cc_without -fstack-protector
    made 0 "" DEVICE=cpu CC=old_cc && lacks "$protect" && has "-fPIE -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=" && has -pie
    [[ $(found) == fortify-*" pie relro (old_cc or its linker does not know: stack-protector)" ]] || found
    cc_without -pie
    made 0 "" DEVICE=cpu CC=old_cc && lacks -pie && lacks -fPIE && has "$protect" && has "-Wl,-z,relro"
    cc_without -Wl,-z
    made 0 "" DEVICE=cpu CC=old_cc && lacks z,relro && has "$protect -fPIE -U_FORTIFY_SOURCE" && has -pie
    [[ $(found) == fortify-*" stack-protector pie (old_cc or its linker does not know: relro)" ]] || found
)"

# cc_for MACHINE: a compiler for another CPU
cc_for() {
    printf '#!/bin/sh\n[ "$*" = -dumpmachine ] && echo %s-linux-gnu && exit\nexec cc "$@"\n' "$1" \
        >"$folder/bin/cross_cc"
    chmod +x "$folder/bin/cross_cc"
}
report "a build is for the CPU of this machine, MARCH for another" "$(
    made 0 "" DEVICE=cpu && has -march=native
    made 0 "" DEVICE=cpu MARCH=x86-64-v3 && has -march=x86-64-v3 && lacks -march=native
)"
report "ARCH=portable: the trainer for four levels and a main for all, whatever CFLAGS says" "$(
    cc_for x86_64
    for flags in -O2 '-O2 -march=native'; do
        made 0 "" DEVICE=cpu CC=cross_cc ARCH=portable CFLAGS="$flags"
        has "$flags -march=x86-64-v2 -Dmain=main_v2"
        has "$flags -march=x86-64-v3 -Dmain=main_v3"
        has "$flags -march=x86-64-v4 -Dmain=main_v4"
        has "$flags -march=x86-64-v4 -mavx512bf16 -Dmain=main_bf16"
        has "$flags -march=x86-64 "
        has "/main.o build/portable/v2.o build/portable/v3.o build/portable/v4.o build/portable/bf16.o -o build/port"
        has "$protect -fPIE -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE="
        has "-pie -Wl,-z,relro"
    done
    target=deb made 0 "" CC=cross_cc
    has "-march=x86-64-v4 -mavx512bf16 -Dmain=main_bf16"
)"
report "ARCH=portable DEVICE=cuda: the CPU has AVX2 and FMA" "$(
    cc_for x86_64
    made 0 "" DEVICE=cuda CC=cross_cc ARCH=portable && has -march=x86-64-v3 && lacks main_v2
)"
report "a compiler for aarch64 builds for every such CPU, with ARCH=portable and without" "$(
    cc_for aarch64
    [ "$(uname -m)" = aarch64 ] || { made 0 "" DEVICE=cpu CC=cross_cc && has -march=armv8-a && lacks -mprefer; }
    made 0 "" DEVICE=cpu CC=cross_cc ARCH=portable && has -march=armv8-a && lacks main_v2 && lacks -march=native
)"
report "another ARCH is refused" "$(
    made 2 "" DEVICE=cpu ARCH=x86-64-v3
    has "ARCH=x86-64-v3: expected native or portable; MARCH= names one CPU"
)"
# kept FILE WORD...: the flags that a make with these words keeps in FILE
kept() {
    (cd "$folder" && env -i PATH="$folder/bin:$PATH" make "$@" >said 2>&1 && cat "$1")
}
report "build/flags changes with ARCH, and make -n only says so" "$(
    before=$(kept build/flags DEVICE=cpu CFLAGS=-O2)
    touch "$folder/train_gpt2"
    made 0 "" DEVICE=cpu CFLAGS=-O2 && has "up to date"
    made 0 "" DEVICE=cpu CFLAGS=-O3 && has " -O3 "
    [ "$(cat "$folder/build/flags")" = "$before" ] || echo "make -n wrote build/flags"
    [ "$(kept build/flags DEVICE=cpu CFLAGS=-O2 ARCH=portable)" != "$before" ] ||
        echo "the same flags with ARCH=portable"
    rm "$folder/train_gpt2"
)"
report "make quick: -O1, after a check of the syntax" "$(
    target=quick made 0 "" DEVICE=cpu
    has "-fsyntax-only train_gpt2.cu"
    has " -O1 -g1 -w "
    target=quick made 0 "NVIDIA H100, 9.0"
    has "-fsyntax-only train_gpt2.cu"
    lacks "touch build/quick" # this program is that of make
)"
report "make compiles the program of make quick again; without a change, make quick does nothing" "$(
    echo 'int main(void) { return 0; }' >"$folder/train_gpt2.cu"
    kept build/flags quick DEVICE=cpu >/dev/null || cat "$folder/said"
    target=quick made 0 "" DEVICE=cpu && has "Nothing to be done for 'quick'"
    made 0 "" DEVICE=cpu && has " -O3 "
    kept build/flags train_gpt2 DEVICE=cpu >/dev/null || cat "$folder/said"
    made 0 "" DEVICE=cpu && has "up to date"
    target=quick made 0 "" DEVICE=cpu && has "Nothing to be done for 'quick'"
)"
report "make quick with an error leaves the program that was there" "$(
    echo 'int main(void) { return x; }' >"$folder/train_gpt2.cu"
    kept build/flags quick DEVICE=cpu && echo "it compiled"
    has "undeclared (first use in this function)"
    "$folder/train_gpt2" || echo "exit status $?, expected 0"
    true >"$folder/train_gpt2.cu"
    rm "$folder/train_gpt2"
)"
# train STATUS DATA: make train with stubs of setup.sh and train.sh, which print their arguments
# shellcheck disable=SC2016
printf '#!/bin/sh\necho "setup <$1>"\n' >"$folder/scripts/setup.sh"
# shellcheck disable=SC2016
printf '#!/bin/sh\nprintf "train <%%s>\\n" "$1"\n' >"$folder/scripts/train.sh"
cp scripts/text.sh "$folder/scripts"
chmod +x "$folder"/scripts/*.sh
train() {
    local status=0
    (cd "$folder" && env -i PATH="$folder/bin:$PATH" make DEVICE=cpu train "DATA=$2" >said 2>&1) || status=$?
    [ "$status" -eq "$1" ] || { echo "exit status $status, expected $1:" && tail -n 3 "$folder/said"; }
}
report "make train: DATA with blanks, quotes, brackets and \$ is passed on as it is" "$(
    echo 'int main(void) { return 0; }' >"$folder/train_gpt2.cu"
    # shellcheck disable=SC2016  # the names of files
    for name in "Alice's Adventures.txt" 'a "b" [1] \c.txt' '$(touch x) `touch x`; touch x.txt' '$HOME $$ & #1.txt' \
        n.txt; do
        echo text >"$folder/$name"
        train 0 "$name" && has "setup <build>" && has "train <$name>" && has "compile    train_gpt2"
        rm "$folder/train_gpt2"
    done
    [ ! -e "$folder/x" ] || echo "a name was executed"
    mkdir "$folder/data" && echo text >"$folder/data/kjv.txt"
    train 0 "" && has "setup <train>" && has "train <>"
)"
report "make train: a DATA that is not there is found before anything is installed or compiled" "$(
    rm -f "$folder/train_gpt2"
    for name in nowhere.txt "it's [no] where.txt" data; do
        train 2 "$name" && has "DATA=$name: it is not a file; give a text to train on"
        lacks setup
        lacks compile
    done
    rm -r "$folder/data" && ln -s /usr/bin/false "$folder/bin/bible"
    for name in curl wget; do ln -sf /usr/bin/false "$folder/bin/$name"; done
    train 2 "" && has "text: no text to train on" && has "setup <train>" && lacks compile
    rm "$folder"/bin/{bible,curl,wget}
    true >"$folder/train_gpt2.cu"
)"
# selects OP COMMAND...: the tests of make test-quick
selects() { equal "$(env -u MAKEFLAGS make -n test-quick OP="$1" 2>&1 | grep 'scripts/run_tests.sh' | xargs)" "$2"; }
report "make test-quick: an operation's cases and tests of its name, a subject's tests, or a sentence" "$(
    ops='build/emulated/test_ops_bf16' reference='build/test/test_reference'
    selects layernorm \
        "scripts/run_tests.sh $reference *layernorm* build/test/test_gradients *layernorm* $ops *layernorm*"
    selects adamw "scripts/run_tests.sh $reference *adamw* $ops *adamw* build/test/test_adamw"
    selects tokenizer \
        "scripts/run_tests.sh build/test/test_tokenizer dev/test/test_tokenize.sh dev/test/test_tokenizer_forms.sh"
    for op in '' no_subject; do
        env -u MAKEFLAGS make -n test-quick OP=$op >"$folder/said" 2>&1 && echo "OP=$op is taken"
        has "OP=$op: expected an operation or the name of a test: adamw arena attention "
    done
)"

report "the same nvcc keeps build/flags, and another changes it" "$(
    before=$(kept build/flags DEVICE=cuda)
    equal "$(kept build/flags DEVICE=cuda)" "$before"
    sed -i 's/V12.4.1/V12.4.2/' "$folder/bin/nvcc"
    [ "$(kept build/flags DEVICE=cuda)" != "$before" ] || echo "the same flags with nvcc V12.4.2"
)"

target=train_gpt2cu
report "train_gpt2cu with llm.c's variables: the CUDA build in bf16 under that name" "$(
    made 0 "" USE_CUDNN=1
    has "-DPRECISION_BF16"
    has "train_gpt2.cu -o train_gpt2cu"
    has "arch=compute_90,code=sm_90"
    target=train_gpt2 made 0 "" DEVICE=cpu PRECISION=BF16
    has "-DPRECISION_BF16"
    made 0 "NVIDIA H100, 9.0" USE_CUDNN=1 PRECISION=FP32
    has -arch=sm_90
    has -DPRECISION_FP32
    made 0 "NVIDIA H100, 9.0" USE_CUDNN=1 GPU_COMPUTE_CAPABILITY=80
    has "-arch=sm_80"
    lacks sm_90
)"
report "train_gpt2cu: NO_USE_MPI and NO_MULTI_GPU leave out MPI and NCCL" "$(
    sed -i 's/^\*) exit 1 ;;/*) exit 0 ;;/' "$folder/bin/nvcc" # every library links
    made 0 "" USE_CUDNN=1
    has -DHAVE_NCCL
    has -DHAVE_MPI
    made 0 "" NO_USE_MPI=1 NO_MULTI_GPU=1
    has "train_gpt2.cu -o train_gpt2cu"
    lacks -DHAVE_MPI
    lacks -DHAVE_NCCL
)"

target=build/cuda/train_gpt2
report "build/cuda/flags changes with NO_MULTI_GPU" "$(
    before=$(kept build/cuda/flags)
    [ -n "$before" ] || cat "$folder/said"
    [ "$(kept build/cuda/flags)" = "$before" ] || echo "other flags the second time"
    [ "$(kept build/cuda/flags NO_MULTI_GPU=1)" != "$before" ] || echo "the same flags with NO_MULTI_GPU=1"
)"
target=train_gpt2
tree() { (cd "$folder" && find . ! -name said -printf '%p %T@ %s\n' | sort); }
report "make -n writes nothing, in a clean tree and in a built one" "$(
    rm -rf "$folder/build"
    for goal in train_gpt2 build/cuda/train_gpt2; do
        for device in cpu cuda; do
            before=$(tree)
            target=$goal made 0 "" DEVICE=$device
            diff <(echo "$before") <(tree)
        done
        kept build/flags DEVICE=cpu >/dev/null
    done
)"
report "a GPU without nvcc: one line says that the GPU is not used, and what to install" "$(
    made 0 "NVIDIA H100, 9.0" NVCC=no_nvcc && lacks -arch
    [ "$(grep 'not used' "$folder/said")" = "GPU        NVIDIA H100, 9.0: not used, as there is no nvcc; install \
NVIDIA's CUDA toolkit, or name its nvcc with NVCC=" ] || cat "$folder/said"
)"
IFS=: read -ra folders <<<"$PATH"
path=
for name in "${folders[@]}"; do [ -x "$name/nvcc" ] || path+=${path:+:}$name; done
if [[ :$path: == *:/usr/bin:* ]]; then
    report "without nvcc in PATH: the nvcc of CUDA_HOME or /usr/local/cuda, and the libraries beside it" "$(
        PATH=$path toolkit=$folder/toolkit
        mkdir -p "$toolkit"/{bin,lib64} && mv "$folder/bin/nvcc" "$toolkit/bin" && touch "$toolkit/lib64/libcublasLt.so"
        export CUDA_HOME=$toolkit
        made 0 "NVIDIA H100, 9.0" && has "$toolkit/bin/nvcc -x cu" && has -arch=sm_90
        has "-Xlinker -rpath=$toolkit/lib64 -Xlinker --enable-new-dtags"
        rm "$toolkit/lib64/libcublasLt.so" # as with the nvcc of a distribution
        made 0 "NVIDIA H100, 9.0" && lacks -rpath
        unset CUDA_HOME
        [ ! -x /usr/local/cuda/bin/nvcc ] || { made 0 "" DEVICE=cuda && has "/usr/local/cuda/bin/nvcc -x cu"; }
        mv "$toolkit/bin/nvcc" "$folder/bin"
    )"
else
    skip "a PATH without nvcc, which is in /usr/bin" 1 "nvcc of CUDA_HOME"
fi

# an Open MPI of NVIDIA's containers, of clusters, or built from source
mpi=(HAVE_MPI=yes MPI_CFLAGS='-isystem /opt/x/include -pthread -Wp,-DONE=1,-DTWO=2'
    MPI_LIBS='-L/opt/x/lib -Wl,-rpath -Wl,/opt/x/lib -Wl,--enable-new-dtags')
report "nvcc passes on the options of MPI's wrapper, with their commas" "$(
    made 0 "" DEVICE=cuda "${mpi[@]}"
    has '-isystem /opt/x/include -Xcompiler -pthread -Xcompiler -Wp\\,-DONE=1\\,-DTWO=2'
    has '-L/opt/x/lib -Xcompiler -Wl\\,-rpath -Xcompiler -Wl\\,/opt/x/lib -Xcompiler -Wl\\,--enable-new-dtags'
)"
if [ -n "$nvcc" ]; then
    report "nvcc links with the options of MPI's wrapper" "$(
        echo 'int main(void) { return ONE + TWO - 3; }' >"$folder/train_gpt2.cu"
        kept train_gpt2 DEVICE=cuda NVCC="$nvcc" GPU_COMPUTE_CAPABILITY=90 CUDA_FLAGS= NO_MULTI_GPU=1 "${mpi[@]}" \
            >/dev/null || cat "$folder/said"
        "$folder/train_gpt2" || echo "exit status $?, expected 0"
        rpath=$(readelf -d "$folder/train_gpt2" | grep PATH)
        [[ $rpath == *RUNPATH*/opt/x/lib* ]] || echo "expected a RUNPATH with /opt/x/lib, found '$rpath'"
    )"
else
    skip nvcc 1 "linking with MPI"
fi

end_tests

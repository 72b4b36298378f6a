#!/usr/bin/env bash
# The precision and the architectures that make chooses for a GPU, the CPU of a build, its hardening, and where nvcc and
# CUDA's libraries are. nvidia-smi and nvcc are stubs, and make only prints its commands, in a copy of the Makefile.
#   dev/test/test_makefile.sh
. "$(dirname "$0")/harness.sh"

make_scratch
mkdir -p "$scratch"/{bin,llmc/run}
cp --parents Makefile dev/*/*.mk scripts/found.sh scripts/*.mk "$scratch"
touch "$scratch/train_gpt2.cu" "$scratch/llmc/run/portable.c"

cat >"$scratch/bin/nvidia-smi" <<'END_OF'
#!/bin/sh
[ -n "$STUB_GPU" ] && [ "$3" = --query-gpu=name,compute_cap ] && echo "$STUB_GPU"
END_OF
cat >"$scratch/bin/nvcc" <<'END_OF'
#!/bin/sh
case $* in
--version) echo "Cuda compilation tools, release 12.4, V12.4.1" ;;
*" -E -include nccl.h "*-) echo "# 0 \"/tmp/$$-stdin\"" ;;
--list-gpu-code) printf 'sm_%s\n' 50 75 80 86 90 ;;
*_FORTIFY_SOURCE=*) ;;
*) exit 1 ;;
esac
END_OF
chmod +x "$scratch"/bin/*

# made STATUS GPU WORD...: what `make $target WORD...` would do on a machine with this GPU. Variables of `make test
# MARCH=...` do not reach it.
target=train_gpt2
made() {
    local status=0
    (cd "$scratch" && env -i PATH="$scratch/bin:$PATH" STUB_GPU="$2" \
        CUDA_HOME="${CUDA_HOME:-}" make -n "$target" "${@:3}" >said 2>&1) || status=$?
    [ "$status" -eq "$1" ] || { echo "exit status $status, expected $1:" && tail -n 3 "$scratch/said"; }
}
has() { grep -qF -- "$1" "$scratch/said" || { echo "expected '$1' in:" && tail -n 6 "$scratch/said"; }; }
lacks() { ! grep -F -- "$1" "$scratch/said"; }

# builds NAME GPU [WORD...] -- [!]TEXT...: on a machine with this GPU, the commands have each TEXT, and lack each !TEXT
builds() {
    local words=() name=$1 gpu=$2 trouble text
    shift 2
    while [ "$1" != -- ]; do words+=("$1") && shift; done
    trouble=$(made 0 "$gpu" "${words[@]}")
    for text in "${@:2}"; do
        if [[ $text == !* ]]; then trouble+=$(lacks "${text:1}"); else trouble+=$(has "$text"); fi
    done
    report "$name" "$trouble"
}
h100="NVIDIA H100, 9.0"
builds "a GPU before sm_80 gets fp32" "Tesla T4, 7.5" -- -arch=sm_75 -DPRECISION_FP32
builds "a GPU from sm_80 on gets bf16" "$h100" -- -arch=sm_90 -DPRECISION_BF16
builds "a build for CPUs is fp32" "$h100" DEVICE=cpu PRECISION=fp32 -- -DPRECISION_FP32 !-arch
builds "words of nvidia-smi that name no GPU: a build for CPUs" "No devices were found" -- -DPRECISION_FP32 !-arch
report "refused: bf16 for a GPU before sm_80, another ARCH" "$(
    made 2 "Tesla T4, 7.5" PRECISION=bf16
    has "needs a GPU of compute capability 8.0 or more, and this is a Tesla T4, 7.5: run make PRECISION=fp32"
    made 2 "" DEVICE=cpu ARCH=x86-64-v3
    has "ARCH=x86-64-v3: expected native or portable; MARCH= names one CPU"
)"
builds "without a GPU: the architectures that nvcc knows, with sm_75 in fp32" "" DEVICE=cuda PRECISION=fp32 -- \
    "-gencode arch=compute_75,code=sm_75 -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=sm_90 -X"
builds "and without sm_75 in bf16" "" DEVICE=cuda -- -DPRECISION_BF16 \
    "-lineinfo -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=sm_90 -Xcompiler"
builds "a GPU without nvcc: one line says that the GPU is not used, and what to install" "$h100" NVCC=no_nvcc -- \
    !-arch "GPU        $h100: not used, as there is no nvcc; install NVIDIA's CUDA toolkit, or name its nvcc with NVCC="

# ---- hardening

protect=-fstack-protector-strong
builds "a build is hardened, whatever CFLAGS says" "" DEVICE=cpu CFLAGS=-O2 -- \
    "$protect -fPIE -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=" "-pie -Wl,-z,relro -Wl,-z,now -Wl,-z,noexecstack"
builds "so is a build for GPUs" "" DEVICE=cuda -- \
    "-Xcompiler $protect -Xcompiler -fPIE -Xcompiler -U_FORTIFY_SOURCE -Xcompiler -D_FORTIFY_SOURCE=" \
    '-Xcompiler -pie -Xcompiler -Wl\\,-z\\,relro -Xcompiler -Wl\\,-z\\,now -Xcompiler -Wl\\,-z\\,noexecstack'
for flags in -g -O0 '-O2 -O0' '-O2 -fsanitize=address'; do
    builds "no _FORTIFY_SOURCE with $flags; the rest of the hardening stays" "" DEVICE=cpu CFLAGS="$flags" -- \
        "$protect" !_FORTIFY_SOURCE
done
builds "HARDENING=0 leaves the hardening out" "" DEVICE=cpu HARDENING=0 -- "!$protect" !FORTIFY !-pie \
    "hardening  turned off"
# cc_without OPTION: a compiler that refuses options that begin with OPTION
cc_without() {
    printf '#!/bin/sh\ncase " $*" in *" %s"*) exit 1 ;; esac\nexec cc "$@"\n' "$1" >"$scratch/bin/old_cc"
    chmod +x "$scratch/bin/old_cc"
}
cc_without -D_FORTIFY_SOURCE=3
builds "level 2 for a compiler that does not know level 3" "" DEVICE=cpu CC=old_cc -- -D_FORTIFY_SOURCE=2
cc_without -D_FORTIFY_SOURCE
builds "no level: the rest of the hardening" "" DEVICE=cpu CC=old_cc -- !FORTIFY_SOURCE "$protect -fPIE" \
    "-pie -Wl,-z,relro" "(old_cc or its linker does not know: fortify)"

# ---- the CPU of a build

# cc_for MACHINE: a compiler for another CPU
cc_for() {
    printf '#!/bin/sh\n[ "$*" = -dumpmachine ] && echo %s-linux-gnu && exit\nexec cc "$@"\n' "$1" \
        >"$scratch/bin/cross_cc"
    chmod +x "$scratch/bin/cross_cc"
}
builds "a build is for the CPU of this machine" "" DEVICE=cpu -- -march=native
builds "MARCH names another" "" DEVICE=cpu MARCH=x86-64-v3 -- -march=x86-64-v3 !-march=native
cc_for x86_64
for flags in -O2 '-O2 -march=native'; do
    builds "ARCH=portable, CFLAGS=$flags: the trainer for four levels and a main for all" "" DEVICE=cpu CC=cross_cc \
        ARCH=portable CFLAGS="$flags" -- "$flags -march=x86-64-v2 -Dmain=main_v2" \
        "$flags -march=x86-64-v3 -Dmain=main_v3" "$flags -march=x86-64-v4 -Dmain=main_v4" \
        "$flags -march=x86-64-v4 -mavx512bf16 -Dmain=main_bf16" "$flags -march=x86-64 " \
        "/main.o build/portable/v2.o build/portable/v3.o build/portable/v4.o build/portable/bf16.o -o build/port" \
        "$protect -fPIE -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=" "-pie -Wl,-z,relro"
done
builds "ARCH=portable DEVICE=cuda: the CPU has AVX2 and FMA" "" DEVICE=cuda CC=cross_cc ARCH=portable -- \
    -march=x86-64-v3 !main_v2
cc_for aarch64
builds "ARCH=portable for aarch64: every such CPU" "" DEVICE=cpu CC=cross_cc ARCH=portable -- -march=armv8-a !main_v2 \
    !-march=native
[ "$(uname -m)" = aarch64 ] ||
    builds "so does a compiler for another CPU" "" DEVICE=cpu CC=cross_cc -- -march=armv8-a !-mprefer

# ---- the flags of the last build; make quick and make train

# kept FILE WORD...: the flags that a make with these words keeps in FILE
kept() {
    (cd "$scratch" && env -i PATH="$scratch/bin:$PATH" make "$@" >said 2>&1 && cat "$1")
}
report "build/flags changes with ARCH, and make -n only says so" "$(
    before=$(kept build/flags DEVICE=cpu CFLAGS=-O2)
    touch "$scratch/train_gpt2"
    made 0 "" DEVICE=cpu CFLAGS=-O2 && has "up to date"
    made 0 "" DEVICE=cpu CFLAGS=-O3 && has " -O3 "
    [ "$(cat "$scratch/build/flags")" = "$before" ] || echo "make -n wrote build/flags"
    [ "$(kept build/flags DEVICE=cpu CFLAGS=-O2 ARCH=portable)" != "$before" ] ||
        echo "the same flags with ARCH=portable"
    rm "$scratch/train_gpt2"
)"
target=quick
builds "make quick: -O1, after a check of the syntax" "" DEVICE=cpu -- "-fsyntax-only train_gpt2.cu" " -O1 -g1 -w "
builds "make quick for a GPU: the program of make, after the check" "$h100" -- "-fsyntax-only train_gpt2.cu" \
    "!touch build/quick"
target=train_gpt2
report "make compiles the program of make quick again; without a change, make quick does nothing" "$(
    echo 'int main(void) { return 0; }' >"$scratch/train_gpt2.cu"
    kept build/flags quick DEVICE=cpu >/dev/null || cat "$scratch/said"
    target=quick made 0 "" DEVICE=cpu && has "Nothing to be done for 'quick'"
    made 0 "" DEVICE=cpu && has " -O3 "
    kept build/flags train_gpt2 DEVICE=cpu >/dev/null || cat "$scratch/said"
    made 0 "" DEVICE=cpu && has "up to date"
    target=quick made 0 "" DEVICE=cpu && has "Nothing to be done for 'quick'"
)"
report "make quick with an error leaves the program that was there" "$(
    echo 'int main(void) { return x; }' >"$scratch/train_gpt2.cu"
    kept build/flags quick DEVICE=cpu && echo "it compiled"
    has "undeclared (first use in this function)"
    "$scratch/train_gpt2" || echo "exit status $?, expected 0"
    true >"$scratch/train_gpt2.cu"
    rm "$scratch/train_gpt2"
)"
# train DATA: make train with stubs of setup.sh and train.sh, which print their arguments
# shellcheck disable=SC2016
printf '#!/bin/sh\necho "setup <$1>"\n' >"$scratch/scripts/setup.sh"
# shellcheck disable=SC2016
printf '#!/bin/sh\nprintf "train <%%s>\\n" "$1"\n' >"$scratch/scripts/train.sh"
cp scripts/text.sh "$scratch/scripts"
chmod +x "$scratch"/scripts/*.sh
train() {
    (cd "$scratch" && env -i PATH="$scratch/bin:$PATH" make DEVICE=cpu train "DATA=$1" >said 2>&1) ||
        { echo "exit status $?:" && tail -n 3 "$scratch/said"; }
}
report "make train: DATA with blanks, quotes, brackets and \$ is passed on as it is" "$(
    echo 'int main(void) { return 0; }' >"$scratch/train_gpt2.cu"
    # shellcheck disable=SC2016  # the names of files
    for name in "Alice's Adventures.txt" 'a "b" [1] \c.txt' '$(touch x) `touch x`; touch x.txt' '$HOME $$ & #1.txt' \
        n.txt; do
        echo text >"$scratch/$name"
        train "$name" && has "setup <build>" && has "train <$name>" && has "compile    train_gpt2"
        rm "$scratch/train_gpt2"
    done
    [ ! -e "$scratch/x" ] || echo "a name was executed"
)"
report "the same nvcc keeps build/flags, and another changes it" "$(
    before=$(kept build/flags DEVICE=cuda)
    equal "$(kept build/flags DEVICE=cuda)" "$before"
    sed -i 's/V12.4.1/V12.4.2/' "$scratch/bin/nvcc"
    [ "$(kept build/flags DEVICE=cuda)" != "$before" ] || echo "the same flags with nvcc V12.4.2"
)"

target=train_gpt2cu
name="train_gpt2cu with llm.c's variables"
builds "$name: the CUDA build in bf16 under that name" "" USE_CUDNN=1 -- -DPRECISION_BF16 \
    "train_gpt2.cu -o train_gpt2cu" "arch=compute_90,code=sm_90"
builds "$name: FP32" "$h100" USE_CUDNN=1 PRECISION=FP32 -- -arch=sm_90 -DPRECISION_FP32
builds "$name: another GPU" "$h100" USE_CUDNN=1 GPU_COMPUTE_CAPABILITY=80 -- -arch=sm_80 !sm_90
sed -i 's/^\*) exit 1 ;;/*) exit 0 ;;/' "$scratch/bin/nvcc" # every library links
builds "$name: MPI and NCCL" "" USE_CUDNN=1 -- -DHAVE_NCCL -DHAVE_MPI
builds "$name: neither" "" NO_USE_MPI=1 NO_MULTI_GPU=1 -- "-o train_gpt2cu" !-DHAVE_MPI !-DHAVE_NCCL
target=train_gpt2

IFS=: read -ra folders <<<"$PATH"
path=
for name in "${folders[@]}"; do [ -x "$name/nvcc" ] || path+=${path:+:}$name; done
if [[ :$path: == *:/usr/bin:* ]]; then
    report "without nvcc in PATH: the nvcc of CUDA_HOME or /usr/local/cuda, and the libraries beside it" "$(
        PATH=$path toolkit=$scratch/toolkit
        mkdir -p "$toolkit"/{bin,lib64} && touch "$toolkit/lib64/libcublasLt.so"
        mv "$scratch/bin/nvcc" "$toolkit/bin"
        export CUDA_HOME=$toolkit
        made 0 "$h100" && has "$toolkit/bin/nvcc -x cu" && has -arch=sm_90
        has "-Xlinker -rpath=$toolkit/lib64 -Xlinker --enable-new-dtags"
        rm "$toolkit/lib64/libcublasLt.so" # as with the nvcc of a distribution
        made 0 "$h100" && lacks -rpath
        unset CUDA_HOME
        [ ! -x /usr/local/cuda/bin/nvcc ] || { made 0 "" DEVICE=cuda && has "/usr/local/cuda/bin/nvcc -x cu"; }
        mv "$toolkit/bin/nvcc" "$scratch/bin"
    )"
else
    skip "a PATH without nvcc, which is in /usr/bin" 1 "nvcc of CUDA_HOME"
fi

# an Open MPI of NVIDIA's containers, of clusters, or built from source
mpi=(HAVE_MPI=yes MPI_CFLAGS='-isystem /opt/x/include -pthread -Wp,-DONE=1,-DTWO=2'
    MPI_LIBS='-L/opt/x/lib -Wl,-rpath -Wl,/opt/x/lib -Wl,--enable-new-dtags')
builds "nvcc passes on the options of MPI's wrapper, with their commas" "" DEVICE=cuda "${mpi[@]}" -- \
    '-isystem /opt/x/include -Xcompiler -pthread -Xcompiler -Wp\\,-DONE=1\\,-DTWO=2' \
    '-L/opt/x/lib -Xcompiler -Wl\\,-rpath -Xcompiler -Wl\\,/opt/x/lib -Xcompiler -Wl\\,--enable-new-dtags'
end_tests

# shellcheck shell=bash disable=SC2154,SC2034  # the parts of gpu_check.sh share variables
# scripts/gpu_check.sh: finds the requirements, and builds the programs.

# ---- CUDA, from its toolkit or from wheels

# sets NVCC, CUDA_ROOT and cuda_flags: headers and libraries of the toolkit first, then of wheels
find_cuda() {
    local wheels nvcc folders folder name library
    mapfile -t wheels < <("$python" -c 'import glob, sys
for path in sys.path: print(*sorted(glob.glob(path + "/nvidia/*")), sep="\n")' 2>/dev/null | sed '/^$/d')
    for nvcc in "${NVCC:-}" "$(command -v nvcc)" /usr/local/cuda/bin/nvcc "${wheels[@]/%//bin/nvcc}"; do
        # nvcc may be a script or a link; nvcc --dryrun names the real folder
        CUDA_ROOT=$("${nvcc:-false}" --dryrun -x cu /dev/null 2>&1 | sed -n 's/^#[$] TOP=//p')
        [ -z "$CUDA_ROOT" ] || break
    done
    if [ -z "$CUDA_ROOT" ]; then
        echo "gpu_check: nvcc is missing: install CUDA's toolkit or the wheel nvidia-cuda-nvcc, or name it in NVCC" >&2
        return 1
    fi
    NVCC=$nvcc CUDA_ROOT=$(realpath "$CUDA_ROOT") cuda_flags=(-lcublasLt)
    for folder in "${wheels[@]/%//include}"; do
        [ ! -d "$folder" ] || cuda_flags+=(-isystem "$folder")
    done
    # a wheel has libcublasLt.so.13 without the plain name that -l looks for
    mkdir -p "$build"/lib
    rm -f "$build"/lib/lib*
    folders=("$CUDA_ROOT"/lib64 "$CUDA_ROOT"/targets/*/lib "$CUDA_ROOT"/lib "${wheels[@]/%//lib}")
    for name in cublasLt nccl; do
        for folder in "${folders[@]}"; do
            library=$(find "$folder" -maxdepth 1 -name "lib$name.so*" -print -quit 2>/dev/null)
            [ -n "$library" ] || continue
            ln -s "$(realpath "$library")" "$build"/lib/lib$name.so
            cuda_flags+=(-Xlinker "-rpath=$folder")
            break
        done
    done
    for folder in "$build"/lib "$CUDA_ROOT"/lib{64,}; do
        [ ! -d "$folder" ] || cuda_flags+=(-L"$folder")
    done
}

# try_cuda: compiles, links and runs a probe for this GPU. A mixture of wheels from several releases often fails
try_cuda() {
    cat >"$build"/probe.cu <<'END'
#include <cublasLt.h>
#include <cuda_bf16.h>
__global__ void add(__nv_bfloat16 *x) { x[threadIdx.x] = x[0] + x[1]; }
int main() { return cublasLtGetVersion() < CUBLAS_VER_MAJOR * 10000; }
END
    local log=$logs/probe.txt
    "$NVCC" -std=c++20 -arch=sm_"$arch" "$build"/probe.cu -o "$build"/probe "${cuda_flags[@]}" >"$log" 2>&1 &&
        "$build"/probe >>"$log" 2>&1 && return
    head -n 20 "$log" >&2
    echo "gpu_check: $NVCC $cuda_version does not build a program with cuBLASLt for sm_$arch; its words are above." \
        "Install CUDA's toolkit, or wheels that are all of one release:" \
        "pip install 'cuda-toolkit[nvcc,nvvm,crt,cccl,cudart,cublas]==$cuda_version.*'" >&2
    return 1
}

# links LIBRARY HEADER...: whether a program links with the library
links() {
    local library=$1 include=()
    shift
    for header in "$@"; do include+=(-include "$header"); done
    c++ -x c++ "${include[@]}" - -o /dev/null "$library" 2>/dev/null <<<'int main() { return 0; }'
}
has_make() { command -v make >/dev/null; }
has_cjson() { links -lcjson cjson/cJSON.h; }
has_cmocka() { links -lcmocka stdarg.h stddef.h stdint.h setjmp.h cmocka.h; }

packages=$build/packages

# pack: saves the packages that the build and the tests need, a text for `rest`, and GPT-2's merges from MERGES=FILE,
# for a machine without a network
pack() {
    rm -rf "$packages"
    mkdir -p "$packages"/text "$logs"
    [ -z "${MERGES:-}" ] || cp "$MERGES" "$packages"/text/merges.bpe || return
    scripts/text.sh "$packages"/text || return
    (cd "$packages" && apt-get -q download make libcjson-dev libcjson1 libcmocka-dev libcmocka0 &&
        for package in *.deb; do dpkg -x "$package" . || exit; done && rm -rf ./*.deb usr/share) 2>&1 |
        tee "$logs"/pack.txt
    [ "${PIPESTATUS[0]}" -eq 0 ] && echo "$packages holds $(du -sh "$packages" | cut -f 1)"
}

# use_packed: appends the packed folders to the search paths; the machine's own come first
use_packed() {
    local libraries=("$PWD/$packages"/usr/lib/*-linux-gnu)
    [ -d "${libraries[0]}" ] || return 0
    export PATH=$PATH:$PWD/$packages/usr/bin
    export CPLUS_INCLUDE_PATH=${CPLUS_INCLUDE_PATH:+$CPLUS_INCLUDE_PATH:}$PWD/$packages/usr/include
    export C_INCLUDE_PATH=${C_INCLUDE_PATH:+$C_INCLUDE_PATH:}$PWD/$packages/usr/include
    export LIBRARY_PATH=${LIBRARY_PATH:+$LIBRARY_PATH:}${libraries[0]}
    export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}${libraries[0]}
}

# ---- building

# build_all NAME...: builds the programs in parallel with make; a program that no longer builds is removed. Without
# cmocka the tests are left out
build_all() {
    local making log=$logs/build.txt name status names=("$@") good=0 excerpt
    if ! has_cmocka; then
        mapfile -t names < <(printf '%s\n' "$@" | grep -v '^test_')
        report "tests" 1 "cmocka is missing: scripts/setup.sh gpu installs it, '$0 pack' packs it elsewhere"
    fi
    making=(make --no-print-directory DEVICE=cuda PRECISION=bf16 NVCC="$NVCC"
        CUDA_FLAGS="${cuda_flags[*]}" ARCHITECTURES="-gencode arch=compute_$arch,code=sm_$arch")
    bounded build "${making[@]}" --jobs="$(nproc)" --keep-going --output-sync "${names[@]/#/$programs/}" >"$log" 2>&1
    status=$?
    for name in "${names[@]}"; do
        if [ $status -eq 0 ] || "${making[@]}" --question "$programs/$name" >/dev/null 2>&1; then
            good=$((good + 1))
            continue
        fi
        report "build $name" $status
        rm -f "$programs/$name"
        [ $status -eq 2 ] || continue  # 2 is make's failure; others are time limits
        excerpt=$(sed -n "\|^compile *$programs/$name\$|,\|^make: \*\*\*|p" "$log")
        mapfile -t excerpt < <(head -n 20 <<<"${excerpt:-$(tail -n 5 "$log")}" | sed 's/^/        /')
        results+=("${excerpt[@]}")
        printf '  %s\n' "${excerpt[@]}"
    done
    report "build" $((good > 0 ? 0 : status)) "$good of ${#names[@]} programs"
}

# built NAME: whether the program exists
built() { [ -x "$programs/$1" ]; }

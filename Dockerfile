# train_gpt2 in a container, for a CPU or for NVIDIA GPUs. Untested: no image has been built yet.
#   docker build -t train_gpt2 .                      a CPU build for many CPUs
#   docker build -t train_gpt2:cuda --target cuda .   a GPU build for every architecture that nvcc knows
#   docker run --rm -v "$PWD:/work" train_gpt2 -i my.txt -e l4h4c128 -t 64 -o runs/mine
#   docker run --rm --gpus all --shm-size 1g -v "$PWD:/work" train_gpt2:cuda -i my.txt -e d12
# The GPU build is for an x86-64 CPU with AVX2 and FMA, or for aarch64.
ARG DEBIAN=debian:12-slim
ARG CUDA=nvidia/cuda:12.6.3

FROM scratch AS source
WORKDIR /source
COPY Makefile train_gpt2.cu README.md CHANGELOG.md CITATION.cff LICENSE ./
COPY llmc llmc
COPY scripts scripts
COPY doc doc
COPY dev dev

# ---- builds

FROM ${DEBIAN} AS build-cpu
RUN apt-get update && apt-get install -y --no-install-recommends \
        make gcc libc6-dev libcjson-dev libopenmpi-dev openmpi-bin \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY --from=source /source .
RUN make -j DEVICE=cpu ARCH=portable train_gpt2 && make install PREFIX=/usr/local DESTDIR=/installed

FROM ${CUDA}-devel-ubuntu22.04 AS build-cuda
RUN apt-get update && apt-get install -y --no-install-recommends \
        make gcc g++ libc6-dev libcjson-dev libopenmpi-dev openmpi-bin \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY --from=source /source .
RUN make DEVICE=cuda PRECISION=bf16 ARCH=portable train_gpt2 && make install PREFIX=/usr/local DESTDIR=/installed

# ---- images: the libraries and the installed files

FROM ${CUDA}-runtime-ubuntu22.04 AS cuda
RUN apt-get update && apt-get install -y --no-install-recommends \
        libcjson1 libgomp1 libopenmpi3 openmpi-bin \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build-cuda /installed /
RUN useradd --create-home --uid 1000 user
USER 1000
WORKDIR /work
ENTRYPOINT ["train_gpt2"]
CMD ["--help"]

FROM ${DEBIAN} AS cpu
RUN apt-get update && apt-get install -y --no-install-recommends \
        libcjson1 libgomp1 libopenmpi3 openmpi-bin \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build-cpu /installed /
RUN useradd --create-home --uid 1000 user
USER 1000
WORKDIR /work
ENTRYPOINT ["train_gpt2"]
CMD ["--help"]

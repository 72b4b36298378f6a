# train_gpt2 in a container, for a CPU or for NVIDIA GPUs. The build has not been run: no Docker engine was at hand.
#   docker build -t train_gpt2 .                      a CPU build for x86-64-v3
#   docker build -t train_gpt2:cuda --target cuda .   a GPU build for every architecture that nvcc knows
#   docker run --rm -v "$PWD:/work" train_gpt2 -i my.txt -e l4h4c128 -t 64 -o runs/mine
#   docker run --rm --gpus all --shm-size 1g -v "$PWD:/work" train_gpt2:cuda -i my.txt -e d12
# MARCH is the CPU of the build, as for `make`. Another CPU than x86-64 needs --build-arg MARCH=armv8-a.
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
        make gcc libc6-dev libcjson-dev libopenmpi-dev libssl-dev openmpi-bin \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY --from=source /source .
ARG MARCH=x86-64-v3
RUN make DEVICE=cpu MARCH="${MARCH}" train_gpt2 && make install PREFIX=/usr/local DESTDIR=/installed

FROM ${CUDA}-devel-ubuntu22.04 AS build-cuda
RUN apt-get update && apt-get install -y --no-install-recommends \
        make gcc g++ libc6-dev libcjson-dev libopenmpi-dev libssl-dev openmpi-bin \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY --from=source /source .
ARG MARCH=x86-64-v3
RUN make DEVICE=cuda PRECISION=bf16 MARCH="${MARCH}" train_gpt2 && make install PREFIX=/usr/local DESTDIR=/installed

# ---- images: the libraries and the installed files

FROM ${CUDA}-runtime-ubuntu22.04 AS cuda
RUN apt-get update && apt-get install -y --no-install-recommends \
        libcjson1 libgomp1 libopenmpi3 libssl3 openmpi-bin \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build-cuda /installed /
RUN useradd --create-home --uid 1000 user
USER 1000
WORKDIR /work
ENTRYPOINT ["train_gpt2"]
CMD ["--help"]

FROM ${DEBIAN} AS cpu
RUN apt-get update && apt-get install -y --no-install-recommends \
        libcjson1 libgomp1 libopenmpi3 libssl3 openmpi-bin \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build-cpu /installed /
RUN useradd --create-home --uid 1000 user
USER 1000
WORKDIR /work
ENTRYPOINT ["train_gpt2"]
CMD ["--help"]

/*
The rate of copies between host memory and a GPU, for the estimates of --offload.
defines: HOST_LINK_ASSUMED, find_host_link, host_link_text, print_offload_note
A rate is in GB (10^9 bytes) per second of one direction. --link gives the rate. Without --link all ranks measure at
once, because ranks of a machine may share a link. The slowest rate is used. --plan takes HOST_LINK_ASSUMED.
*/
#pragma once
#include "llmc/parallel/comm.h"
#include "llmc/run/train_args.h"

#define HOST_LINK_ASSUMED 25.0  // PCIe 4 x16

// GB/s of the slower direction, the best of a few copies
static inline double measure_host_link(const Device *device, bool pageable, Comm *world) {
    enum { COPIES = 5 };
    const size_t bytes = (size_t)16 << 20;
    void *on_device = device->allocate(bytes);
    void *on_host = pageable ? device->allocate_pageable(bytes) : device->allocate_host(bytes);
    double best[2] = {1e9, 1e9};  // seconds up and down
    device->upload(on_device, on_host, bytes);
    comm_barrier(world);
    for (int i = 0; i < 2 * COPIES; i++) {
        double start = now_seconds();
        if (i % 2) {
            device->download(on_host, on_device, bytes);
        } else {
            device->upload(on_device, on_host, bytes);
        }
        best[i % 2] = fmin(best[i % 2], now_seconds() - start);
    }
    if (pageable) {
        device->release(on_host);
    } else {
        device->release_host(on_host);
    }
    device->release(on_device);
    return (double)bytes / fmax(best[0], best[1]) / 1e9;
}

// the smallest of the ranks' numbers, to a millionth
static inline double least_of_ranks(double number, Comm *world) {
    return (double)-comm_max(-llround(number * 1e6), world) / 1e6;
}

// Sets a->host_link and a->gpu_flops, once. All ranks call this together. --plan measures nothing.
static inline void find_host_link(TrainArgs *a, const Backend *backend, Comm *world) {
    if (a->host_link > 0) { return; }
    bool gpu = backend->device != &cpu_device && is_on_this_machine(backend);
    if (gpu) { a->gpu_flops = 1e12 * least_of_ranks(backend->peak_flops(a->matmul_precision > 0) / 1e12, world); }
    a->link_is_measured = gpu && a->link == 0 && !a->plan;
    a->host_link = a->link > 0 ? a->link : HOST_LINK_ASSUMED;
    if (a->link_is_measured) {
        a->host_link = least_of_ranks(measure_host_link(backend->device, a->offload_pageable != 0, world), world);
    }
}

// the rate and its origin, after find_host_link; returns text
static inline const char *host_link_text(char text[64], const TrainArgs *a) {
    const char *origin = a->link > 0 ? "--link" : a->link_is_measured ? "measured" : "assumed; see --link";
    snprintf(text, 64, "%.3g GB/s (%s)", a->host_link, origin);
    return text;
}

// notes: --offload on a CPU, and below 3 without training
static inline void print_offload_note(FILE *out, const TrainArgs *a, const Backend *backend) {
    bool trains = !a->generate && !a->eval;
    if (a->offload == 0) { return; }
    if (backend->device == &cpu_device) {
        fprintf(out, "note      --offload %d does nothing on a CPU: the model is already in host memory\n", a->offload);
    } else if (!trains && a->offload < 3) {
        fprintf(out, "note      --offload %d moves nothing of --generate and --eval: 3 moves the weights\n",
                a->offload);
    }
}

/*
Device memory of a test, filled from the host and read back.
*/
#pragma once
#include "llmc/common/cuda_common.cuh"
#include <vector>

template <class T> struct DeviceArray {
    T *at = nullptr;
    size_t size;
    explicit DeviceArray(size_t size_) : size(size_) { CUDA_CHECK(cudaMalloc(&at, size * sizeof(T))); }
    explicit DeviceArray(const std::vector<T> &host) : DeviceArray(host.size()) {
        CUDA_CHECK(cudaMemcpy(at, host.data(), size * sizeof(T), cudaMemcpyHostToDevice));
    }
    DeviceArray(const DeviceArray &) = delete;
    DeviceArray &operator=(const DeviceArray &) = delete;
    ~DeviceArray() { cudaFree(at); }
    std::vector<T> host() const {
        std::vector<T> copy(size);
        CUDA_CHECK(cudaMemcpy(copy.data(), at, size * sizeof(T), cudaMemcpyDeviceToHost));
        return copy;
    }
};

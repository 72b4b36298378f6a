/*
GPUs by the name that the driver reports, and from their properties: for MFU and for predictions.
*/
#include "testing.h"
#include "llmc/run/gpus.h"

static GpuModel gpu_named(const char *name, int capability, int multiprocessors) {
    GpuModel gpu = {"", NULL, capability, multiprocessors, 0, 0, 0, 12e9};
    return gpu_model(name, gpu, 2000000, 1000000, 256);
}

TEST(test_known_by_the_drivers_name) {
    static const struct {
        const char *device, *name;
        int capability, multiprocessors;
    } expected[] = {{"NVIDIA H200", "h200", 90, 132},
                    {"NVIDIA H100 80GB HBM3", "h100", 90, 132},
                    {"NVIDIA H100 PCIe", "h100-pcie", 90, 114},
                    {"NVIDIA A100-SXM4-80GB", "a100", 80, 108},
                    {"NVIDIA GeForce RTX 4090", "4090", 89, 128},
                    {"Tesla T4", "t4", 75, 40}};
    for (size_t i = 0; i < LEN(expected); i++) {
        GpuModel gpu = gpu_named(expected[i].device, expected[i].capability, expected[i].multiprocessors);
        assert_string_equal(gpu.name, expected[i].name);
        assert_int_equal(gpu.capability, expected[i].capability);
    }
}

// the published rates are those of the multiprocessors at a clock that such cards reach
TEST(test_the_table_agrees_with_the_architectures) {
    for (int i = 0; i < NUM_GPUS; i++) {
        const GpuModel *known = &known_gpus[i];
        const char *other = strstr(known->device, "GeForce") ? "another GeForce" : "another";
        GpuModel computed = gpu_named(other, known->capability, known->multiprocessors);  // at 2 GHz
        assert_true(known->matmul_flops < computed.matmul_flops * 1.3);
        assert_true(known->matmul_flops > computed.matmul_flops * 0.65);
        assert_true(known->fp32_flops < computed.fp32_flops * 1.3);
        assert_true(known->fp32_flops > computed.fp32_flops * 0.65);
    }
}

TEST(test_an_unknown_gpu_is_computed) {
    GpuModel laptop = gpu_named("NVIDIA GeForce RTX 4090 Laptop GPU", 89, 76);
    assert_string_equal(laptop.name, "NVIDIA GeForce RTX 4090 Laptop ");
    assert_true(laptop.matmul_flops == 512 * 2e9 * 76);
    assert_true(laptop.fp32_flops == 256 * 2e9 * 76);
    assert_true(laptop.bandwidth == 2 * 1e9 * 256 / 8);
    assert_true(laptop.memory == 12e9);
    GpuModel data_center = gpu_named("NVIDIA L40S", 89, 142);  // 362 TFLOP/s at 2.49 GHz, twice a GeForce's rate
    assert_true(data_center.matmul_flops == 1024 * 2e9 * 142);
    // the same word within a name is another GPU
    assert_string_equal(gpu_named("NVIDIA GH200 480GB", 90, 132).name, "NVIDIA GH200 480GB");
    assert_string_equal(gpu_named("NVIDIA H200 NVL", 90, 132).name, "NVIDIA H200 NVL");
    GpuModel future = gpu_named("NVIDIA X900", 130, 10);  // as the latest architecture
    assert_true(future.matmul_flops == 1024 * 2e9 * 10);
    assert_int_equal(future.capability, 130);
}

int main(void) { return run_all_tests("gpus"); }

/*
Readings of this process's GPU for the log: memory in use, SM clock, power, temperature (-lg).
defines: GpuReading, GpuMonitor, gpu_monitor_open, gpu_monitor_read, gpu_monitor_last, gpu_monitor_note,
         gpu_monitor_close
The readings come from NVML, the library under nvidia-smi, which is opened at run time: a program runs without it.
Functions, constants and units: NVML API Reference, docs.nvidia.com/deploy/nvml-api, "Device Queries". NVML numbers GPUs
by itself and ignores CUDA_VISIBLE_DEVICES, so the GPU is found by its PCI bus id.
*/
#pragma once
#include "llmc/common/device.h"
#include <dlfcn.h>
#include <math.h>

// NAN: the GPU does not report the value
typedef struct {
    double memory_mib, clock_mhz, power_w, temperature_c;
} GpuReading;

// nvmlMemory_t, in bytes
typedef struct {
    unsigned long long total, free, used;
} NvmlMemory;

typedef struct NvmlDevice NvmlDevice;                   // nvmlDevice_t points to one
enum { NVML_DONE = 0, NVML_SM = 1, NVML_GPU_DIE = 0 };  // NVML_SUCCESS, NVML_CLOCK_SM, NVML_TEMPERATURE_GPU

// functions of the library; each returns NVML_DONE or an error
typedef struct {
    int (*init)(void);
    int (*shutdown)(void);
    int (*by_pci_bus_id)(const char *id, NvmlDevice **device);
    int (*memory)(NvmlDevice *device, NvmlMemory *memory);
    int (*clock)(NvmlDevice *device, int which, unsigned *megahertz);
    int (*power)(NvmlDevice *device, unsigned *milliwatts);
    int (*temperature)(NvmlDevice *device, int which, unsigned *celsius);
} Nvml;

typedef struct {
    int every;         // -lg
    const char *note;  // why there are no readings, or ""
    void *library;     // NULL: no readings
    Nvml nvml;
    NvmlDevice *device;
    GpuReading last;
    double last_time;  // seconds; 0: nothing was read
} GpuMonitor;

// *function = the library's function of that name. dlsym returns a void pointer, which C does not convert to a
// function's. False if there is none.
static inline bool nvml_find(void *library, const char *name, void *function) {
    void *found = dlsym(library, name);
    memcpy(function, &found, sizeof found);
    return found != NULL;
}

static inline bool nvml_find_all(Nvml *n, void *library) {
    return nvml_find(library, "nvmlInit_v2", &n->init) && nvml_find(library, "nvmlShutdown", &n->shutdown) &&
           nvml_find(library, "nvmlDeviceGetHandleByPciBusId_v2", &n->by_pci_bus_id) &&
           nvml_find(library, "nvmlDeviceGetMemoryInfo", &n->memory) &&
           nvml_find(library, "nvmlDeviceGetClockInfo", &n->clock) &&
           nvml_find(library, "nvmlDeviceGetPowerUsage", &n->power) &&
           nvml_find(library, "nvmlDeviceGetTemperature", &n->temperature);
}

// Begins to use the library, or returns the reason why not. On success *library is open.
static inline const char *nvml_open(Nvml *n, NvmlDevice **gpu, void **library, const Device *device) {
    char id[PCI_BUS_ID_LENGTH];
    void *opened = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!opened) { return "libnvidia-ml.so.1 could not be opened"; }
    const char *why = "libnvidia-ml.so.1 is too old";
    if (nvml_find_all(n, opened)) {
        why = "NVML did not start";
        device->pci_bus_id(id);
        if (n->init() == NVML_DONE) {
            why = "NVML does not know this GPU";
            if (n->by_pci_bus_id(id, gpu) == NVML_DONE) {
                *library = opened;
                return "";
            }
            n->shutdown();
        }
    }
    dlclose(opened);
    return why;
}

// every: -lg: a reading every N steps; -1: at most one a second; 0: none. Without NVML there are no readings: that is
// no error. Close with gpu_monitor_close.
static inline GpuMonitor gpu_monitor_open(int every, const Device *device) {
    GpuMonitor g;
    memset(&g, 0, sizeof g);
    g.every = every;
    g.note = "";
    if (every == 0) { return g; }
    g.note = device->pci_bus_id ? nvml_open(&g.nvml, &g.device, &g.library, device) : "the run is on a CPU";
    return g;
}

static inline void gpu_monitor_close(GpuMonitor *g) {
    if (!g->library) { return; }
    g->nvml.shutdown();
    dlclose(g->library);
    g->library = NULL;
}

// Prints a note if -lg was given and has no effect.
static inline void gpu_monitor_note(const GpuMonitor *g) {
    if (g->every > 0 && *g->note) { printf("note      -lg %d shows nothing: %s\n", g->every, g->note); }
}

static inline double nvml_value(int status, unsigned value, double unit) {
    return status == NVML_DONE ? value * unit : NAN;
}

static inline GpuReading nvml_read(const Nvml *n, NvmlDevice *gpu) {
    GpuReading r;
    NvmlMemory memory;
    unsigned clock = 0, power = 0, temperature = 0;
    r.memory_mib = n->memory(gpu, &memory) == NVML_DONE ? (double)memory.used / (1 << 20) : NAN;
    int status = n->clock(gpu, NVML_SM, &clock);
    r.clock_mhz = nvml_value(status, clock, 1);
    status = n->power(gpu, &power);
    r.power_w = nvml_value(status, power, 1e-3);
    status = n->temperature(gpu, NVML_GPU_DIE, &temperature);
    r.temperature_c = nvml_value(status, temperature, 1);
    return r;
}

// The readings for metrics.jsonl at `step`, or NULL. -lg N: NULL in the steps between. -lg -1: the last reading,
// at most a second old. now: seconds. The calls take host time; the GPU keeps working.
static inline const GpuReading *gpu_monitor_read(GpuMonitor *g, long long step, double now) {
    if (!g->library || (g->every > 0 && step % g->every != 0)) { return NULL; }
    if (g->every > 0 || now - g->last_time >= 1) {
        g->last = nvml_read(&g->nvml, g->device);
        g->last_time = now;
    }
    return &g->last;
}

// the last readings, for the line of a step; NULL: there are none yet
static inline const GpuReading *gpu_monitor_last(const GpuMonitor *g) { return g->last_time > 0 ? &g->last : NULL; }

/*
Time and bandwidth of collectives by size, as a Markdown table.
    OMP_NUM_THREADS=cores/N mpirun -np N --bind-to none build/bench/bench_comm [largest buffer in MiB, 64]
Buffer: the input of an all-reduce or broadcast, and all chunks of a reduce-scatter or all-gather. ms: median on rank 0,
with a barrier before each call. Sent: bytes sent by a rank. GB/s: sent bytes divided by the time.
A DEVICE=cuda build on a machine with a GPU measures device memory, through NCCL or staged through the host.
*/
#include "llmc/parallel/comm_open.h"
#include "llmc/common/device.h"
#ifdef HAVE_CUDA
#include "llmc/common/device.cuh"
#endif

enum { MAX_ROUNDS = 51 };

typedef struct {
    const Device *device;
    Exec exec;
    Comm *host, *world;
    char *buffer;
} Bench;

typedef CommWork Collective(char *buffer, size_t count, Bench *bench);

static CommWork run_all_reduce(char *buffer, size_t count, Bench *b) {
    return comm_all_reduce(buffer, count, DT_F32, b->world, &b->exec);
}

static CommWork run_reduce_scatter(char *buffer, size_t count, Bench *b) {
    size_t chunk = chunk_size(count, b->world->size);
    return comm_reduce_scatter(buffer + (size_t)b->world->rank * chunk * 4, buffer, chunk, DT_F32, b->world, &b->exec);
}

static CommWork run_reduce_scatter_bf16(char *buffer, size_t count, Bench *b) {
    size_t chunk = chunk_size(2 * count, b->world->size);
    return comm_reduce_scatter(buffer + (size_t)b->world->rank * chunk * 2, buffer, chunk, DT_BF16, b->world, &b->exec);
}

static CommWork run_all_gather(char *buffer, size_t count, Bench *b) {
    size_t chunk = chunk_size(count, b->world->size);
    return comm_all_gather(buffer, buffer + (size_t)b->world->rank * chunk * 4, chunk, DT_F32, b->world, &b->exec);
}

static CommWork run_broadcast(char *buffer, size_t count, Bench *b) {
    return comm_broadcast(buffer, count, DT_F32, 0, b->world, &b->exec);
}

static const struct {
    const char *name;
    Collective *run;
} collectives[] = {
    {"all_reduce fp32", run_all_reduce},
    {"reduce_scatter fp32", run_reduce_scatter},
    {"reduce_scatter bf16", run_reduce_scatter_bf16},
    {"all_gather", run_all_gather},
    {"broadcast", run_broadcast},
};

static int by_time(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median_seconds(Collective *run, size_t count, Bench *b) {
    double seconds[MAX_ROUNDS];
    int rounds = count > (1 << 20) ? 9 : MAX_ROUNDS;
    for (int i = -2; i < rounds; i++) {  // the first two warm up
        comm_barrier(b->world);
        double start = now_seconds();
        comm_wait(run(b->buffer, count, b), b->world, &b->exec);
        b->device->event_record(0, &b->exec);
        comm_event_synchronize(0, b->world, &b->exec);
        if (i >= 0) { seconds[i] = now_seconds() - start; }
    }
    qsort(seconds, (size_t)rounds, sizeof seconds[0], by_time);
    return seconds[rounds / 2];
}

// one row of the table
static void bench_row(int which, size_t bytes, Bench *b) {
    uint64_t sent = b->world->sent_bytes;
    collectives[which].run(b->buffer, bytes / 4, b);
    sent = b->world->sent_bytes - sent;
    double seconds = median_seconds(collectives[which].run, bytes / 4, b);
    if (b->world->rank == 0) {
        printf("| %-20s | %-6s | %d | %9.3f | %9.3f | %9.3f | %7.2f |\n", collectives[which].name,
               b->world->backend->name, b->world->size, (double)bytes / (1 << 20), (double)sent / (1 << 20),
               seconds * 1e3, (double)sent / seconds / 1e9);
        fflush(stdout);
    }
}

static Bench bench_open(size_t bytes) {
    Bench b;
    memset(&b, 0, sizeof b);
    b.host = comm_open();
    b.device = &cpu_device;
#ifdef HAVE_CUDA
    const char *why;
    if (cuda_device_count(&why) > 0) { b.device = &cuda_device; }
#endif
    b.world = comm_open_for(b.device, b.host);
#ifdef HAVE_CUDA
    if (b.device == &cuda_device) { cuda_exec_open(&b.exec, NULL, 0); }
#endif
    b.buffer = (char *)b.device->allocate(bytes + 64 * (size_t)b.world->size);  // and the chunks' padding
    b.device->fill(b.buffer, 0, bytes + 64 * (size_t)b.world->size);
    return b;
}

static void bench_close(Bench *b) {
    b->device->release(b->buffer);
    if (b->world != b->host) { comm_close(b->world); }
#ifdef HAVE_CUDA
    if (b->exec.cuda) { cuda_exec_close(&b->exec); }
#endif
    comm_close(b->host);
}

int main(int argc, char **argv) {
    size_t largest = (size_t)(argc > 1 ? atoi(argv[1]) : 64) << 20;
    Bench b = bench_open(largest);
    char backends[512];
    comm_backends(backends, sizeof backends);
    if (b.world->rank == 0) {
        printf("built with %s\n\n", backends);
        printf("| collective           | by     | N | buffer MiB| sent MiB  | ms        | GB/s    |\n");
        printf("|----------------------|--------|---|----------:|----------:|----------:|--------:|\n");
    }
    for (int i = 0; i < (int)(sizeof collectives / sizeof collectives[0]); i++) {
        for (size_t bytes = 4096; bytes <= largest; bytes *= 16) { bench_row(i, bytes, &b); }
        if ((largest & (largest - 1)) || __builtin_ctzll(largest) % 4) { bench_row(i, largest, &b); }
    }
    bench_close(&b);
    return 0;
}

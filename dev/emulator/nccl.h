/*
Emulates NCCL between the processes of one machine, on the emulated CUDA runtime (cuda_runtime.h). If a build has
-DHAVE_NCCL and -Idev/emulator, it includes this file for <nccl.h>.
  Ranks        A rank is a process with one of SIMT_GPUS GPUs. The ranks share anonymous memory (memfd_create): a
               killed process leaves no file. The unique id is its path in /proc: as with NCCL, the process that created
               the id must live until all ranks have connected.
  Collectives  A collective queues three pieces of work on its stream. SIMT_STREAMS orders them among kernels and
               copies.
                 begin    the output becomes NaN where it is not the input too: the earliest write
                 post     the input is read: the latest read. The output of a sum becomes NaN
                 finish   runs once every rank has posted, and writes the output
               Sums add in the order of ranks in fp32 and round once, which gives the bits of comm_mpi.h.
  Order        The order is that of NCCL 2.26 and later. The collectives of a group run one after another, even if some
               are in a CUDA graph and others are not. With NCCL_LAUNCH_ORDER_IMPLICIT=1 a collective begins once every
               earlier one has begun, in other groups too. With SIMT_NCCL_ALONE=1 a collective takes the whole GPU, and
               no other begins before it has finished. If ranks then begin the collectives of overlapping groups in
               different orders, they wait for each other for ever.
  Memory       The first collective of a group takes SIMT_NCCL_MIB (16) of device memory.
  Failure      Nothing reports that a rank has ended, unless SIMT_NCCL_REMOTE=1 makes it an asynchronous
               ncclRemoteError. If a process makes no progress for SIMT_NCCL_SECONDS (120), it names the ranks that it
               waits for and aborts. It also aborts if ranks make different calls, and in ncclCommFinalize while a CUDA
               graph holds collectives of the group.
  MPI          While the host waits in MPI_Test, its GPU works on.
SIMT_NCCL_VERSION is 22809. ncclCommFinalize waits for all work of the GPU and for all ranks. Not emulated: threads,
buffers and connections, groups of calls, communicators that do not block, and collectives that compete with kernels
for SMs.
*/
#pragma once
#include <cuda_runtime.h>
#pragma push_macro("fail")  // a macro of cmocka, and a function in <memory>
#undef fail
#include <memory>
#pragma pop_macro("fail")
#include <atomic>
#include <cerrno>
#include <csignal>
#include <fcntl.h>

// ---- NCCL's types and constants, with NCCL's values

enum ncclResult_t { ncclSuccess, ncclUnhandledCudaError, ncclSystemError, ncclRemoteError = 6, ncclInProgress };
enum ncclDataType_t { ncclUint8 = 1, ncclInt64 = 4, ncclFloat32 = 7, ncclBfloat16 = 9 };
enum ncclRedOp_t { ncclSum = 0, ncclMax = 2 };
struct ncclUniqueId {
    char internal[128];
};
struct ncclConfig_t;

namespace simt::nccl {

// ---- shared memory: a place for each rank of each communicator

enum Kind { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST };

struct Call {  // must match on all ranks
    Kind kind;
    int type, operation, root;
    size_t count;
    size_t width() const { return type == ncclInt64 ? 8 : type == ncclFloat32 ? 4 : type == ncclBfloat16 ? 2 : 1; }
    bool operator==(const Call &) const = default;
};

struct Place {
    std::atomic<uint64_t> posted, finished;  // collectives
    std::atomic<uint64_t> meetings;          // calls of meet
    std::atomic<pid_t> process;              // 0: the rank has not connected
    std::atomic<bool> finalized;
    Call call;                    // the latest that was posted
    int colour, key, child;       // of ncclCommSplit; child: first place of the new communicator
    std::atomic<int> num_places;  // of all communicators; in the first place alone
};
typedef std::atomic<uint64_t> Place::*Counter;

// Address space: a page that no rank touches takes no memory.
constexpr size_t PLACE_BYTES = size_t{1} << 30, HEAD_BYTES = 4096, DATA_BYTES = PLACE_BYTES - HEAD_BYTES;
constexpr size_t MAX_PLACES = 64, ALL_BYTES = MAX_PLACES * PLACE_BYTES;

struct Group {
    char *memory;  // all places
    int first, rank, size;
    std::vector<int> world = {};  // each rank's rank in the world
    uint64_t begun = 0;           // collectives
    uint64_t last_finish = 0;     // number of the latest collective's last piece
    size_t device_bytes = 0;      // taken at the first collective
    const Call *running = nullptr;
    std::shared_ptr<int> graphs = std::make_shared<int>();  // shared by collectives in graphs that live

    Place &place(int r) const {
        return *reinterpret_cast<Place *>(memory + PLACE_BYTES * static_cast<size_t>(first + r));
    }
    Place &own() const { return place(rank); }
    char *data(int r) const { return reinterpret_cast<char *>(&place(r)) + HEAD_BYTES; }
    std::string name(int r) const { return "rank " + std::to_string(world[static_cast<size_t>(r)]); }
    bool all_reached(Counter counter, uint64_t value) const {
        for (int r = 0; r < size; r++) {
            if (place(r).*counter < value) { return false; }
        }
        return true;
    }
    bool has_ended(int r) const {
        const Place &p = place(r);
        return p.process && !p.finalized && kill(p.process, 0) != 0 && errno == ESRCH;
    }
};

// this process's state
inline struct State {
    std::vector<Group *> groups;
    uint64_t last_begin = 0;        // number of the latest collective's first piece
    int running = 0;                // collectives
    double waited = 0, looked = 0;  // seconds; time
    uint64_t pieces = 0;            // that had run at the last look
} state;

// ---- errors and waits

[[noreturn]] inline void refuse(const std::string &sentence) {
    std::fprintf(stderr, "simt: NCCL: %s\n", sentence.c_str());
    std::abort();
}

// "AllGather 7 of ranks 1 3"
inline std::string text_of(const Call &call, const Group &g) {
    static const char *const names[] = {"AllReduce", "ReduceScatter", "AllGather", "Broadcast"};
    std::string text = std::string(names[call.kind]) + " " + std::to_string(g.begun) + " of ranks";
    for (int r : g.world) { text += " " + std::to_string(r); }
    return text;
}

// the ranks that this process waits for
inline std::string missing() {
    std::string text = "process " + std::to_string(getpid()) + " waits for", comma;
    for (const Group *g : state.groups) {
        for (int r = 0; r < g->size; r++) {
            const Place &p = g->place(r);
            if (g->running ? p.posted >= g->begun : p.meetings >= g->own().meetings) { continue; }
            text += comma + " " + g->name(r) +
                    (!p.process        ? ", which has not started"
                     : g->has_ended(r) ? ", which has ended"
                                       : "");
            text += g->running ? " in " + text_of(*g->running, *g) : "";
            comma = ";";
        }
    }
    return text + (comma.empty() ? " its own streams: no piece of their work is ready" : "");
}

// Sleeps, and stops a process without progress. The clock stands still while the process is stopped.
inline void wait_for_ranks() {
    double now = now_seconds(), limit = setting_from_environment("SIMT_NCCL_SECONDS", 120);
    uint64_t pieces = runtime().submitted - runtime().pending.size();
    state.waited = pieces == state.pieces ? state.waited + std::min(now - state.looked, 0.1) : 0;
    state.pieces = pieces;
    state.looked = now;
    if (state.waited > limit) { refuse(missing()); }
    usleep(50);
}
inline const bool waits = (wait_for_processes = wait_for_ranks, true);

// Waits until every rank of the group has called it as often as this one. The GPU works on meanwhile.
inline void meet(Group &g) {
    uint64_t number = ++g.own().meetings;
    while (!g.all_reached(&Place::meetings, number)) {
        run_pieces(all_pending(), 1, false);
        wait_for_ranks();
    }
}

// ---- a collective and its three pieces

struct Collective {
    Group *group;
    Call call;
    const char *in;
    char *out;
    std::shared_ptr<int> graph;  // group->graphs in a graph, else NULL
    uint64_t number = 0;         // of the group's collectives, from its beginning on

    size_t bytes(int chunks) const { return call.count * call.width() * static_cast<size_t>(chunks); }
    int chunks_in() const { return call.kind == REDUCE_SCATTER ? group->size : 1; }
    int chunks_out() const { return call.kind == ALL_GATHER ? group->size : 1; }
    bool sums() const { return call.kind == ALL_REDUCE || call.kind == REDUCE_SCATTER; }
    bool reads() const { return call.kind != BROADCAST || call.root == group->rank; }
    bool in_place() const { return in < out + bytes(chunks_out()) && out < in + bytes(chunks_in()); }
};

inline void begin(Collective &k) {
    k.number = ++k.group->begun;
    k.group->running = &k.call;
    state.running++;
    bool keeps = k.reads() && k.in_place();
    for (int r = 0; r < k.chunks_out(); r++) {
        bool is_input = keeps && (k.call.kind != ALL_GATHER || r == k.group->rank);
        if (!is_input) { std::memset(k.out + k.bytes(r), 0xff, k.bytes(1)); }
    }
}

inline void post(Collective &k) {
    Place &own = k.group->own();
    if (k.reads()) { std::memcpy(k.group->data(k.group->rank), k.in, k.bytes(k.chunks_in())); }
    if (k.sums()) { std::memset(k.out, 0xff, k.bytes(1)); }
    own.call = k.call;
    own.posted = k.number;
}

// out = the sum, or the maximum, of all ranks' inputs from element `from` on
inline void reduce(Collective &k, size_t from) {
    size_t width = k.call.width();
    for (size_t i = 0; i < k.call.count; i++) {
        float sum = -0.0f;  // (-0) + x is x for every x, -0 included
        long long most = LLONG_MIN;
        for (int r = 0; r < k.group->size; r++) {
            const char *x = k.group->data(r) + (from + i) * width;
            if (k.call.type == ncclInt64) { most = std::max(most, *reinterpret_cast<const long long *>(x)); }
            if (k.call.type == ncclFloat32) { sum += *reinterpret_cast<const float *>(x); }
            if (k.call.type == ncclBfloat16) { sum += bf16_to_float(*reinterpret_cast<const bf16 *>(x)); }
        }
        bf16 rounded = float_to_bf16(sum);
        const void *results[] = {&rounded, &sum, &most};  // of 2, 4 and 8 bytes
        std::memcpy(k.out + i * width, results[width / 4], width);
    }
}

inline void finish(Collective &k) {
    Group &g = *k.group;
    for (int r = 0; r < g.size; r++) {
        const Call &call = g.place(r).call;
        if (call == k.call) { continue; }
        refuse(g.name(g.rank) + " calls " + text_of(k.call, g) + ", but " + g.name(r) + " " + text_of(call, g) +
               ", or with another count, type or root");
    }
    if (k.sums()) { reduce(k, k.call.kind == ALL_REDUCE ? 0 : k.call.count * static_cast<size_t>(g.rank)); }
    if (k.call.kind == BROADCAST) { std::memcpy(k.out, g.data(k.call.root), k.bytes(1)); }
    for (int r = 0; k.call.kind == ALL_GATHER && r < g.size; r++) {
        std::memcpy(k.out + k.bytes(r), g.data(r), k.bytes(1));
    }
    g.running = nullptr;
    state.running--;
    g.own().finished = k.number;
}

// ---- enqueueing

// Orders the first piece of a collective. It gets `number` at the call, and in a graph at each launch.
inline void order_begin(const Group &g, SimtGraphNode &piece, uint64_t number) {
    const char *implicit = std::getenv("NCCL_LAUNCH_ORDER_IMPLICIT");
    piece.after.push_back(g.last_finish);
    if (implicit && std::atoi(implicit)) { piece.after.push_back(state.last_begin); }
    state.last_begin = number;
}

inline ncclResult_t enqueue(Group *g, Call call, const void *in, void *out, cudaStream_t stream) {
    static const bool alone = setting_from_environment("SIMT_NCCL_ALONE", 0) != 0;
    static const size_t mib = static_cast<size_t>(setting_from_environment("SIMT_NCCL_MIB", 16));
    if (call.count == 0) { return ncclSuccess; }
    bool moves = call.kind == ALL_GATHER || call.kind == BROADCAST;
    if (!moves && (call.type == ncclUint8 || (call.type == ncclInt64) != (call.operation == ncclMax))) {
        refuse(text_of(call, *g) + ": only sums of floats and maxima of integers are emulated");
    }
    auto k = std::make_shared<Collective>(Collective{g, call, static_cast<const char *>(in), static_cast<char *>(out),
                                                     stream->capture ? g->graphs : nullptr});
    size_t in_bytes = k->bytes(k->chunks_in()), out_bytes = k->bytes(k->chunks_out());
    if (memory_kind(in, in_bytes) != DEVICE || memory_kind(out, out_bytes) != DEVICE || in_bytes > DATA_BYTES) {
        refuse(text_of(call, *g) + ": a buffer is not inside one allocation of device memory, or exceeds 1 GiB");
    }
    if (g->device_bytes == 0) {
        if (is_full(DEVICE, mib << 20)) { return ncclUnhandledCudaError; }
        runtime().device_bytes_used += g->device_bytes = mib << 20;
    }
    SimtGraphNode pieces[] = {{cudaGraphNodeTypeKernel, "nccl", copy_nanoseconds(0), [k] { begin(*k); }},
                              {cudaGraphNodeTypeKernel, "nccl", copy_nanoseconds(in_bytes), [k] { post(*k); }},
                              {cudaGraphNodeTypeKernel, "nccl", copy_nanoseconds(out_bytes), [k] { finish(*k); }}};
    pieces[0].ready = [] { return !alone || state.running == 0; };
    pieces[1].ready = [k] { return k->group->all_reached(&Place::finished, k->number - 1); };
    pieces[2].ready = [k] { return k->group->all_reached(&Place::posted, k->number); };
    pieces[0].submitted = [g](SimtGraphNode &piece, uint64_t number) { order_begin(*g, piece, number); };
    pieces[2].submitted = [g](SimtGraphNode &, uint64_t number) { g->last_finish = number; };
    for (const SimtGraphNode &piece : pieces) {
        if (submit(stream, piece) != cudaSuccess) { return ncclUnhandledCudaError; }
    }
    return ncclSuccess;
}

// ---- communicators

// Takes this rank's place, and waits for the others.
inline Group *connect(const Group &made) {
    Group *g = new Group(made);
    g->own().process = getpid();
    state.groups.push_back(g);
    meet(*g);
    return g;
}

inline int take_places(char *memory, int count) {
    int first = reinterpret_cast<Place *>(memory)->num_places.fetch_add(count);
    if (first + count > static_cast<int>(MAX_PLACES)) { refuse("the groups have too many ranks together"); }
    return first;
}

}  // namespace simt::nccl

typedef simt::nccl::Group *ncclComm_t;

inline const char *ncclGetErrorString(ncclResult_t result) {
    if (result == ncclRemoteError) { return "remote process exited or there was a network error"; }
    return result == ncclUnhandledCudaError ? "unhandled cuda error" : "unhandled system error";
}
inline const char *ncclGetLastError(ncclComm_t) { return ""; }

inline ncclResult_t ncclGetVersion(int *version) {
    *version = simt::setting_from_environment("SIMT_NCCL_VERSION", 22809);
    return ncclSuccess;
}

inline ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
    int file = memfd_create("nccl", MFD_CLOEXEC);
    if (ftruncate(file, static_cast<off_t>(simt::nccl::ALL_BYTES)) != 0) { return ncclSystemError; }
    *id = {};
    std::snprintf(id->internal, sizeof id->internal, "/proc/%d/fd/%d", getpid(), file);
    return ncclSuccess;
}

inline ncclResult_t ncclCommInitRank(ncclComm_t *comm, int size, ncclUniqueId id, int rank) {
    using namespace simt::nccl;
    int file = open(id.internal, O_RDWR | O_CLOEXEC);
    if (file < 0) { return ncclRemoteError; }
    void *memory = mmap(nullptr, ALL_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
    close(file);
    if (memory == MAP_FAILED) { return ncclSystemError; }
    Group made = {static_cast<char *>(memory), 0, rank, size};
    for (int r = 0; r < size; r++) { made.world.push_back(r); }
    if (rank == 0) { take_places(made.memory, size); }
    *comm = connect(made);
    return ncclSuccess;
}

inline ncclResult_t ncclCommSplit(ncclComm_t parent, int colour, int key, ncclComm_t *comm, ncclConfig_t *) {
    using namespace simt::nccl;
    parent->own().colour = colour;
    parent->own().key = key;
    meet(*parent);
    std::vector<int> members;
    for (int r = 0; r < parent->size; r++) {
        if (parent->place(r).colour == colour) { members.push_back(r); }
    }
    std::stable_sort(members.begin(), members.end(),
                     [=](int a, int b) { return parent->place(a).key < parent->place(b).key; });
    int size = static_cast<int>(members.size());
    if (members[0] == parent->rank) { parent->own().child = take_places(parent->memory, size); }
    meet(*parent);
    auto own = std::find(members.begin(), members.end(), parent->rank) - members.begin();
    Group made = {parent->memory, parent->place(members[0]).child, static_cast<int>(own), size};
    for (int member : members) { made.world.push_back(parent->world[static_cast<size_t>(member)]); }
    *comm = connect(made);
    meet(*parent);  // the next split overwrites colour, key and child
    return ncclSuccess;
}

inline ncclResult_t ncclCommCount(ncclComm_t comm, int *count) { return *count = comm->size, ncclSuccess; }
inline ncclResult_t ncclCommUserRank(ncclComm_t comm, int *rank) { return *rank = comm->rank, ncclSuccess; }

// as NCCL's, also for another thread than the host's
inline ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error) {
    static const bool tells = simt::setting_from_environment("SIMT_NCCL_REMOTE", 0) != 0;
    *error = ncclSuccess;
    for (int r = 0; tells && r < comm->size; r++) {
        if (comm->has_ended(r)) { *error = ncclRemoteError; }
    }
    return ncclSuccess;
}

inline ncclResult_t ncclCommFinalize(ncclComm_t comm) {
    simt::run_pending();
    bool in_graphs = comm->graphs.use_count() > 1;
    if (in_graphs) {
        simt::nccl::refuse("ncclCommFinalize would wait for ever: a CUDA graph has collectives of the group");
    }
    comm->own().finalized = true;
    simt::nccl::meet(*comm);
    return ncclSuccess;
}
inline ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    std::erase(simt::nccl::state.groups, comm);
    simt::runtime().device_bytes_used -= comm->device_bytes;
    if (comm->first == 0) { munmap(comm->memory, simt::nccl::ALL_BYTES); }
    delete comm;
    return ncclSuccess;
}

inline ncclResult_t ncclAllReduce(const void *in, void *out, size_t count, ncclDataType_t type, ncclRedOp_t operation,
                                  ncclComm_t comm, cudaStream_t stream) {
    return enqueue(comm, {simt::nccl::ALL_REDUCE, type, operation, 0, count}, in, out, stream);
}
inline ncclResult_t ncclReduceScatter(const void *in, void *out, size_t count, ncclDataType_t type,
                                      ncclRedOp_t operation, ncclComm_t comm, cudaStream_t stream) {
    return enqueue(comm, {simt::nccl::REDUCE_SCATTER, type, operation, 0, count}, in, out, stream);
}
inline ncclResult_t ncclAllGather(const void *in, void *out, size_t count, ncclDataType_t type, ncclComm_t comm,
                                  cudaStream_t stream) {
    return enqueue(comm, {simt::nccl::ALL_GATHER, type, 0, 0, count}, in, out, stream);
}
inline ncclResult_t ncclBroadcast(const void *in, void *out, size_t count, ncclDataType_t type, int root,
                                  ncclComm_t comm, cudaStream_t stream) {
    return enqueue(comm, {simt::nccl::BROADCAST, type, 0, root, count}, in, out, stream);
}

#ifdef HAVE_MPI
#define OMPI_SKIP_MPICXX 1
#include <mpi.h>
// In place of MPI's: while the host waits, its GPU works on.
extern "C" inline __attribute__((used)) int MPI_Test(MPI_Request *request, int *done, MPI_Status *status) {
    static int turns = 0;
    int error = PMPI_Test(request, done, status);
    turns = *done ? 0 : turns + 1;
    if (turns > 100) { simt::run_pieces(simt::all_pending(), 1, false); }  // late: after some milliseconds
    return error;
}
#endif

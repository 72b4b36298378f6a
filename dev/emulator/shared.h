/*
Emulated shared memory: bounds-checked arrays, the race check, and cp.async.
*/
#pragma once
#include "dev/emulator/block.h"

namespace simt {

// ---- shared memory: arrays, bounds, and the race check

// The static array of a declaration; the first thread of the block allocates it. Static arrays lie above the dynamic
// shared memory with gaps of at least 16 bytes, so that an access past the end of one array does not hit another.
inline SharedRegion static_region(const void *declaration, const char *name, uint32_t bytes) {
    Block &b = block();
    for (const SharedRegion &region : b.regions) {
        if (region.declaration == declaration) { return region; }
    }
    uint32_t limit = static_cast<uint32_t>(shared_bytes_limit());
    b.static_bytes += (bytes + 15) / 16 * 16;
    if (b.static_bytes > STATIC_SHARED_BYTES || b.static_bytes + b.regions[0].end > limit) {
        refuse(b.current, "array %s: more than %d KB of static shared memory, or %d KB of both kinds", name,
               STATIC_SHARED_BYTES / 1024, limit / 1024);
    }
    uint32_t last = std::max<uint32_t>(b.regions.back().end, SHARED_BYTES), begin = (last / 16 + 2) * 16;
    if (begin + bytes > SHARED_WINDOW_BYTES) { refuse(b.current, "array %s: too many static arrays", name); }
    std::memset(b.shared + begin, 0xff, bytes);
    b.regions.push_back(SharedRegion{declaration, name, begin, begin + bytes});
    return b.regions.back();
}

inline const SharedRegion *find_region(const Block &b, uint32_t address, uint32_t bytes) {
    for (const SharedRegion &region : b.regions) {
        if (address >= region.begin && address < region.end && bytes <= region.end - address) { return &region; }
    }
    return nullptr;
}

// host address of a shared address; aborts if it is misaligned or out of range
inline char *shared_bytes_at(uint32_t address, uint32_t bytes, int thread) {
    Block &b = block();
    if (address % bytes) { refuse(thread, "misaligned shared memory address %u for %u bytes", address, bytes); }
    if (!find_region(b, address, bytes)) { refuse(thread, "shared memory address %u is out of range", address); }
    return b.shared + address;
}

// True if no barrier orders an earlier access before the access that `thread` makes now.
inline bool conflicts(const Block &b, const Access &earlier, int thread) {
    if (earlier.time < b.block_barrier || earlier.who == thread) { return false; }
    int warp = thread / WARP;
    bool same_warp = earlier.who == SEVERAL_LANES + warp || earlier.who / WARP == warp;
    return !same_warp || earlier.time >= b.warp_barrier[warp];
}

// Adds an access by `thread`. Earlier accesses that a barrier has ordered are dropped.
inline void add_access(const Block &b, Access *accesses, int thread) {
    if (conflicts(b, *accesses, thread)) {
        bool same_warp = accesses->who == SEVERAL_LANES + thread / WARP || accesses->who / WARP == thread / WARP;
        accesses->who = static_cast<uint16_t>(same_warp ? SEVERAL_LANES + thread / WARP : SEVERAL_WARPS);
    } else {
        accesses->who = static_cast<uint16_t>(thread);
    }
    accesses->time = b.time;
}

// Reports `access` after or during `before`.
inline void report_race(uint32_t address, int thread, const Access &other, const char *access, const char *before) {
    Block &b = block();
    b.counts.races++;
    if (settings().only_count_races) { return; }
    const SharedRegion *region = find_region(b, address, SHADOW_UNIT);
    char who[48] = "several threads";
    if (other.time < b.start) {
        snprintf(who, sizeof who, "nobody");
    } else if (other.who < SEVERAL_LANES) {
        snprintf(who, sizeof who, "thread %d", other.who);
    }
    refuse(thread, "race on %s, byte %u: %s %s; the other access is by %s", region->name, address - region->begin,
           access, before, who);
}

enum AccessKind { READ, WRITE, UPDATE };

template <AccessKind KIND> void check_access(uint32_t address, uint32_t bytes, int thread) {
    if (!settings().check_races) { return; }
    Block &b = block();
    const char *name = KIND == READ ? "read" : KIND == WRITE ? "write" : "update";
    for (uint32_t at = address; at < address + bytes; at += SHADOW_UNIT) {
        Shadow &s = b.shadows[at / SHADOW_UNIT];
        if (KIND != WRITE && s.write.time < b.start) {
            report_race(at, thread, s.write, name, "before any write");
        } else if (s.in_flight) {
            report_race(at, thread, s.write, name, "while a cp.async copy is in flight");
        } else if (conflicts(b, s.write, thread)) {
            report_race(at, thread, s.write, name, "after write, no barrier");
        } else if (KIND != READ && conflicts(b, s.read, thread)) {
            report_race(at, thread, s.read, name, "after read, no barrier");
        } else if (KIND != UPDATE && conflicts(b, s.update, thread)) {
            report_race(at, thread, s.update, name, "after update, no barrier");
        }
        if (KIND == WRITE) {
            s.write = Access{b.time, static_cast<uint16_t>(thread)};
        } else {
            add_access(b, KIND == READ ? &s.read : &s.update, thread);
        }
    }
}

template <class T> T load_shared(uint32_t address) {
    T value;
    std::memcpy(&value, shared_bytes_at(address, sizeof value, block().current), sizeof value);
    check_access<READ>(address, sizeof value, block().current);
    return value;
}

template <class T> void store_shared(uint32_t address, T value) {
    std::memcpy(shared_bytes_at(address, sizeof value, block().current), &value, sizeof value);
    check_access<WRITE>(address, sizeof value, block().current);
}

template <class T> T update_shared(uint32_t address, T (*update)(T, T), T operand) {
    char *bytes = shared_bytes_at(address, sizeof operand, block().current);
    check_access<UPDATE>(address, sizeof operand, block().current);
    T old;
    std::memcpy(&old, bytes, sizeof old);
    T updated = update(old, operand);
    std::memcpy(bytes, &updated, sizeof updated);
    return old;
}

}  // namespace simt

template <class T> class SharedPtr;

// Reference returned by SharedPtr's p[i]: every read and write is checked. Read it into a T; `auto` would copy the
// reference.
template <class T> class SharedElement {
  public:
    explicit SharedElement(SharedPtr<T> to) : at(to) {}
    SharedElement(const SharedElement &) = default;
    operator T() const { return simt::load_shared<T>(at.address); }
    const SharedElement &operator=(T value) const {
        simt::store_shared<T>(at.address, value);
        return *this;
    }
    const SharedElement &operator=(const SharedElement &from) const { return *this = static_cast<T>(from); }
    const SharedElement &operator+=(T value) const { return *this = static_cast<T>(T(*this) + value); }
    SharedPtr<T> operator&() const { return at; }

  private:
    SharedPtr<T> at;
};

// Pointer into shared memory with the bounds of the array. Under nvcc SharedPtr<T> is T *.
template <class T> class SharedPtr {
  public:
    uint32_t address, begin, end;  // byte offsets in the block's shared memory
    SharedPtr(uint32_t address_, uint32_t begin_, uint32_t end_) : address(address_), begin(begin_), end(end_) {
        static_assert(sizeof(T) >= simt::SHADOW_UNIT,
                      "the race check tracks pairs of bytes, so elements have at least 2");
    }
    SharedPtr operator+(int64_t count) const {
        return {static_cast<uint32_t>(address + count * static_cast<int64_t>(sizeof(T))), begin, end};
    }
    SharedElement<T> operator*() const { return (*this)[0]; }
    SharedElement<T> operator[](int64_t i) const {
        int64_t at = address + i * static_cast<int64_t>(sizeof(T));
        if (at < begin || at + static_cast<int64_t>(sizeof(T)) > end) {
            simt::refuse(simt::block().current, "index %lld is outside a shared array, whose bytes are %u to %u",
                         static_cast<long long>(i), begin, end);
        }
        return SharedElement<T>(*this + i);
    }
};

namespace simt {
template <class T> SharedPtr<T> static_shared(const void *declaration, const char *name, uint32_t count) {
    SharedRegion region = static_region(declaration, name, count * static_cast<uint32_t>(sizeof(T)));
    return SharedPtr<T>(region.begin, region.begin, region.end);
}
}  // namespace simt

// Static shared memory: T name[count], 16-byte aligned. The address of the char identifies the declaration.
#define SHARED_ARRAY(T, name, count)                                                                                   \
    static const char name##_declaration = 0;                                                                          \
    const SharedPtr<T> name = simt::static_shared<T>(&name##_declaration, #name, count)
// Dynamic shared memory of the launch as an array of T, 1024-byte aligned.
#define DYNAMIC_SHARED(T, name) const SharedPtr<T> name(0, 0, simt::block().regions[0].end)

namespace simt {

// ---- cp.async

inline void complete_copy(const AsyncCopy &copy, int thread) {
    char *to = shared_bytes_at(copy.to, copy.bytes, thread);
    if (copy.from) {
        std::memcpy(to, copy.from, copy.bytes);
    } else {
        std::memset(to, 0, copy.bytes);
    }
}

inline void mark_in_flight(const AsyncCopy &copy, int change) {
    Block &b = block();
    for (uint32_t at = copy.to; at < copy.to + copy.bytes; at += SHADOW_UNIT) {
        b.shadows[at / SHADOW_UNIT].in_flight = static_cast<uint16_t>(b.shadows[at / SHADOW_UNIT].in_flight + change);
    }
}

// Starts a cp.async. With valid == false the copy writes zeros and does not read `from`.
inline void start_copy(uint32_t to, const void *from, uint32_t bytes, bool valid) {
    Block &b = block();
    Thread &thread = b.threads[b.current];
    require_capability(80, "cp.async");
    if (reinterpret_cast<uintptr_t>(from) % bytes) { refuse(b.current, "cp.async from a misaligned global address"); }
    char *bytes_at = shared_bytes_at(to, bytes, b.current);
    AsyncCopy copy = {to, bytes, thread.groups, valid ? from : nullptr};
    check_access<WRITE>(to, bytes, b.current);
    mark_in_flight(copy, 1);
    if (settings().eager_async) {
        complete_copy(copy, b.current);
    } else {
        std::memset(bytes_at, 0xff, bytes);
    }
    thread.copies.push_back(copy);
    b.counts.async_copies++;
}

inline void commit_copies() { block().threads[block().current].groups++; }

// Waits until at most `pending` of the thread's latest groups are in flight.
inline void wait_for_copies(uint32_t pending) {
    Block &b = block();
    Thread &thread = b.threads[b.current];
    size_t pending_copies = 0;
    for (const AsyncCopy &copy : thread.copies) {
        if (copy.group + pending >= thread.groups) {
            thread.copies[pending_copies++] = copy;
            continue;
        }
        if (!settings().eager_async) { complete_copy(copy, b.current); }
        mark_in_flight(copy, -1);
        check_access<WRITE>(copy.to, copy.bytes, b.current);
    }
    thread.copies.resize(pending_copies);
}

}  // namespace simt

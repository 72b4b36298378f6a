/*
Predicts the time of work that overlaps with copies between host and device (--offload), over a link of a given rate.

A timeline lists the work, the starts of copies and the waits in the order of the trainer's calls. The simulation has a
clock for the work, one for each copy stream, and one for each direction of the link:
  work    runs after earlier work
  copy    runs after the work enqueued before it, after earlier copies of its stream, and after earlier copies of its
          direction; it takes COPY_START and its bytes over the rate
  wait    later work runs after the copy
  read    work that reads host memory directly: as a copy upwards that is waited for at once
The directions are full duplex. A direction takes copies in the order of the calls, so a copy that its stream delays
also delays later copies of its direction. A GPU may take those first: steps of 124M and 1558M on an RTX 4060 and 4090
would be up to 6 % shorter. We assume that copies do not slow down the kernels that run at the same time.
*/
#pragma once
#include "llmc/common/device.h"
#include <math.h>

// assumptions: a step is predicted at each level
typedef enum { PESSIMISTIC, EXPECTED, OPTIMISTIC, LEVELS } Level;

// ---- links

typedef struct {
    char name[32];
    double rate[LEVELS];  // bytes per second in one direction
} Link;

// GB/s of the lanes at 8, 16 and 32 GT/s with 128b/130b encoding, and the share that copies of pinned memory reach.
// Published measurements: on PCIe 3 x16 a P100 copies 12.2 GB/s up and 12.9 down. On PCIe 4 x16 an RTX 4090 copies 23.9
// up and 26.6 down, and 1 MiB at 22.5 up, which makes 3 us for the begin of a copy. Other links are taken to reach the
// same share.
static const double LANE[3] = {0.985, 1.969, 3.938};
static const double LINK_SHARE[LEVELS] = {0.70, 0.78, 0.84};
static const double COPY_START[LEVELS] = {6e-6, 3e-6, 2e-6};  // seconds

enum { NUM_LINKS = 6 };

// PCIe 3, 4 and 5, each x8 and x16
static inline void known_links(Link links[NUM_LINKS]) {
    for (int i = 0; i < NUM_LINKS; i++) {
        int version = 3 + i / 2, lanes = i % 2 ? 16 : 8;
        snprintf(links[i].name, sizeof links[i].name, "PCIe %d x%d", version, lanes);
        for (int level = 0; level < LEVELS; level++) {
            links[i].rate[level] = 1e9 * LANE[i / 2] * lanes * LINK_SHARE[level];
        }
    }
}

// ---- timelines

typedef enum { LINK_WORK, LINK_UP, LINK_DOWN, LINK_READ, LINK_WAIT } LinkEventKind;

typedef struct {
    LinkEventKind kind;
    int at;                  // work: its call; copy: its stream; wait: the event of the copy
    double bytes;            // over the link
    CopyWork copy;           // of a copy
    double seconds[LEVELS];  // of work
} LinkEvent;

// zero at first; free(events)
typedef struct {
    LinkEvent *events;
    int count, room;
} Timeline;

static inline void timeline_add(Timeline *t, LinkEventKind kind, int at, double bytes, CopyWork copy) {
    if (t->count == t->room) {
        t->room = t->room ? 2 * t->room : 1024;
        t->events = (LinkEvent *)xrealloc(t->events, (size_t)t->room * sizeof *t->events);
    }
    LinkEvent *e = &t->events[t->count++];
    memset(e, 0, sizeof *e);
    e->kind = kind;
    e->at = at;
    e->bytes = bytes;
    e->copy = copy;
}

// the event at which a copy begins; -1: none
static inline int timeline_find(const Timeline *t, CopyWork copy) {
    int at = t->count - 1;
    while (at >= 0 && t->events[at].copy != copy) { at--; }
    return at;
}

// up: from the host to the device; else from the device to the host
static inline double timeline_bytes(const Timeline *t, bool up) {
    double bytes = 0;
    for (int i = 0; i < t->count; i++) {
        LinkEventKind kind = t->events[i].kind;
        if (up ? kind == LINK_UP || kind == LINK_READ : kind == LINK_DOWN) { bytes += t->events[i].bytes; }
    }
    return bytes;
}

static inline double timeline_seconds(const Timeline *t, const Link *link, Level level) {
    double work = 0, up = 0, down = 0, stream[COPY_STREAMS] = {0};
    double *done = (double *)xcalloc((size_t)t->count + 1, sizeof *done);  // of each copy
    for (int i = 0; i < t->count; i++) {
        const LinkEvent *e = &t->events[i];
        double *direction = e->kind == LINK_DOWN ? &down : &up, over = e->bytes / link->rate[level];
        switch (e->kind) {
        case LINK_WORK: work += e->seconds[level]; break;
        case LINK_WAIT: work = fmax(work, done[e->at]); break;
        case LINK_READ: work = fmax(work, up) + e->seconds[level] + over; break;
        case LINK_UP:
        case LINK_DOWN:
            done[i] = fmax(work, fmax(stream[e->at], *direction)) + COPY_START[level] + over;
            stream[e->at] = *direction = done[i];
            break;
        }
    }
    free(done);
    return work;
}

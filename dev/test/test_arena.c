// plan.h: the plan's offsets, sums and JSON; the arenas that are exactly the plan; scratch with one owner at a time.
#include "testing.h"
#define POISON_SCRATCH
#include "plan_bytes.h"
#include <sys/stat.h>

enum { NUM_TENSORS = 8 };

typedef struct {
    void *a, *b, *unplanned, *c, *d, *e, *f, *g, *h;
} Example;

#define EXAMPLE(...) PLAN_ADD_MEMBER(&plan, Example, __VA_ARGS__)

// tensors of every lifetime, of 0, 1 and many multiples of the alignment and of other sizes
static Plan example_plan(void) {
    Plan plan = {NULL, 0};
    EXAMPLE(a, STATE, DT_F32, 1);
    EXAMPLE(b, SAVED, DT_BF16, 128, 1);
    EXAMPLE(c, SCRATCH, DT_F32, 5, 13, 1);
    EXAMPLE(g, HOST, DT_I16, 100);
    EXAMPLE(d, STATE, DT_U8, 0);
    EXAMPLE(e, SAVED, DT_F64, 2, 3, 5, 7);
    EXAMPLE(f, SCRATCH, DT_I32, 64);
    EXAMPLE(h, HOST, DT_F32, 65);
    return plan;
}

static const size_t example_bytes[NUM_TENSORS] = {256, 256, 512, 256, 0, 1792, 256, 512};

// ---- the plan

TEST(test_offsets) {
    Plan plan = example_plan();
    size_t ends[2] = {0, 0};
    assert_int_equal(plan.count, NUM_TENSORS);
    for (int i = 0; i < NUM_TENSORS; i++) {
        assert_int_equal(plan.tensors[i].bytes, example_bytes[i]);
        size_t *end = &ends[plan.tensors[i].lifetime == HOST];
        assert_int_equal(plan.tensors[i].offset, *end);
        assert_int_equal(plan.tensors[i].offset % PLAN_ALIGN, 0);
        assert_int_equal(plan_tensor_bytes(&plan, plan.tensors[i].name), example_bytes[i]);
        *end += example_bytes[i];
    }
    plan_free(&plan);
}

TEST(test_sums) {
    Plan plan = example_plan(), empty = {NULL, 0};
    assert_int_equal(plan_bytes(&plan, STATE), 256);
    assert_int_equal(plan_bytes(&plan, SAVED), 256 + 1792);
    assert_int_equal(plan_bytes(&plan, SCRATCH), 512 + 256);
    assert_int_equal(plan_bytes(&plan, HOST), 768);
    assert_int_equal(plan_device_bytes(&plan), 3072);
    assert_int_equal(plan_device_bytes(&empty), 0);
    assert_int_equal(plan_bytes(&empty, HOST), 0);
    plan_free(&plan);
}

// offsets and sums past 4 GiB are size_t, not int
TEST(test_large_sizes) {
    Plan plan = {NULL, 0};
    plan_add(&plan, 0, "logits", SCRATCH, DT_BF16, 3, (const size_t[]){64, 1024, 50304});
    plan_add(&plan, 0, "logits_again", SCRATCH, DT_F32, 3, (const size_t[]){64, 1024, 50304});
    assert_int_equal(plan.tensors[1].offset, 6593445888u);
    assert_int_equal(plan_bytes(&plan, SCRATCH), 3 * (size_t)6593445888u);
    plan_free(&plan);
}

static void add_product_overflow(void *unused) {
    (void)unused;
    Plan plan = {NULL, 0};
    plan_add(&plan, 0, "huge", STATE, DT_F32, 3, (const size_t[]){(size_t)1 << 31, (size_t)1 << 31, 1});
}

static void add_sum_overflow(void *unused) {
    (void)unused;
    Plan plan = {NULL, 0};
    const size_t large[] = {(size_t)1 << 30, (size_t)1 << 29};
    for (int i = 0; i < 4; i++) { plan_add(&plan, 0, "large", STATE, DT_F32, 2, large); }
}

TEST(test_unaddressable) {
    assert_stops(2, "huge would take more memory", add_product_overflow, NULL);
    assert_stops(2, "large would take more memory", add_sum_overflow, NULL);
}

static double number(const cJSON *object, const char *key) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    assert_true(cJSON_IsNumber(item));
    return item->valuedouble;
}

static const char *string(const cJSON *object, const char *key) {
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, key));
    assert_non_null(text);
    return text;
}

TEST(test_json) {
    static const char *const lifetimes[NUM_TENSORS] = {"state", "saved", "scratch", "host",
                                                       "state", "saved", "scratch", "host"};
    static const char *const dtypes[NUM_TENSORS] = {"F32", "BF16", "F32", "I16", "U8", "F64", "I32", "F32"};
    Plan plan = example_plan();
    cJSON *json = plan_json(&plan, 3);
    assert_int_equal(cJSON_GetArraySize(json), 7);
    assert_true(number(json, "rank") == 3);
    assert_true(number(json, "state") == 256);
    assert_true(number(json, "saved") == 2048);
    assert_true(number(json, "scratch") == 768);
    assert_true(number(json, "host") == 768);
    assert_true(number(json, "total") == 3072);
    const cJSON *tensors = cJSON_GetObjectItemCaseSensitive(json, "tensors");
    assert_int_equal(cJSON_GetArraySize(tensors), NUM_TENSORS);
    for (int i = 0; i < NUM_TENSORS; i++) {
        const cJSON *tensor = cJSON_GetArrayItem(tensors, i), *shape = cJSON_GetObjectItem(tensor, "shape");
        assert_int_equal(cJSON_GetArraySize(tensor), 5);
        assert_string_equal(string(tensor, "name"), plan.tensors[i].name);
        assert_string_equal(string(tensor, "lifetime"), lifetimes[i]);
        assert_string_equal(string(tensor, "dtype"), dtypes[i]);
        assert_true(number(tensor, "bytes") == (double)example_bytes[i]);
        assert_int_equal(cJSON_GetArraySize(shape), plan.tensors[i].num_dims);
        assert_true(cJSON_GetArrayItem(shape, 0)->valuedouble == (double)plan.tensors[i].shape[0]);
    }
    cJSON_Delete(json);
    plan_free(&plan);
}

// ---- the arena

static size_t allocated, allocated_host, released, released_host;  // of dirty_device

static void *dirty_allocate(size_t bytes) {
    allocated += bytes;
    return memset(host_allocate(bytes), 0xAB, bytes);
}

static void *zeroed_host(size_t bytes) {
    allocated_host += bytes;
    return cpu_device.allocate_host(bytes);
}

static void dirty_release(void *p) {
    released++;
    free(p);
}

static void dirty_release_host(void *p) {
    released_host++;
    free(p);
}

TEST(test_arena) {
    allocated = allocated_host = released = released_host = 0;
    Device dirty_device = cpu_device;
    dirty_device.allocate = dirty_allocate;
    dirty_device.allocate_host = zeroed_host;
    dirty_device.release = dirty_release;
    dirty_device.release_host = dirty_release_host;
    Plan plan = example_plan();
    Arena arena = arena_create(&plan, &dirty_device);
    assert_int_equal(allocated, 3072);
    assert_int_equal(allocated_host, 768);
    for (size_t i = 0; i < allocated; i++) { assert_int_equal(arena.device[i], 0); }
    Example pointers = {NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL};
    arena_bind(arena, &plan, &pointers);
    void *const bound[NUM_TENSORS] = {pointers.a, pointers.b, pointers.c, pointers.g,
                                      pointers.d, pointers.e, pointers.f, pointers.h};
    assert_null(pointers.unplanned);
    for (int i = 0; i < NUM_TENSORS; i++) {
        bool host = plan.tensors[i].lifetime == HOST;
        unsigned char *tensor = (host ? arena.host : arena.device) + plan.tensors[i].offset;
        assert_ptr_equal(tensor, bound[i]);
        assert_int_equal((uintptr_t)tensor % 256, 0);
        for (size_t j = 0; j < example_bytes[i]; j++) { assert_int_equal(tensor[j], 0); }  // no other tensor's bytes
        if (example_bytes[i]) { memset(tensor, i + 1, example_bytes[i]); }
    }
    arena_release(arena, &dirty_device);
    assert_int_equal(released, 1);
    assert_int_equal(released_host, 1);
    plan_free(&plan);
}

// ---- scratch

static void acquire_twice(void *argument) {
    Scratch *scratch = (Scratch *)argument;
    scratch_acquire(scratch, "dfch", 2);
    scratch_acquire(scratch, "dqkv", 2);
}

static void acquire_too_much(void *scratch) { scratch_acquire((Scratch *)scratch, "logits", 17); }

TEST(test_scratch) {
    unsigned char memory[64] = {0};
    Scratch scratch = {memory, sizeof memory, NULL, &cpu_device, NULL};
    assert_ptr_equal(scratch_acquire(&scratch, "dln2", 16), memory);
    assert_string_equal(scratch.owner, "dln2");
    scratch_release(&scratch);
    assert_null(scratch.owner);
    for (size_t i = 0; i < sizeof memory / sizeof(float); i++) {
        float stale;
        memcpy(&stale, memory + i * sizeof stale, sizeof stale);
        assert_true(isnan(stale));  // POISON_SCRATCH
    }
    assert_ptr_equal(scratch_acquire(&scratch, "datty", 1), memory);
    scratch_release(&scratch);
    assert_stops(1, "scratch for dqkv is in use by dfch", acquire_twice, &scratch);
    assert_stops(1, "scratch has 64 bytes, logits needs 68", acquire_too_much, &scratch);
}

// in parts, by several threads
TEST(test_large_copy) {
    enum { BYTES = (3 << 20) + 5 };
    unsigned char *from = (unsigned char *)xmalloc(BYTES), *to = (unsigned char *)xcalloc(1, BYTES + 1);
    for (size_t i = 0; i < BYTES; i++) { from[i] = (unsigned char)(i * 2654435761u >> 13); }
    assert_int_equal(cpu_device.download_begin(COPY_PARAMS, to, from, BYTES, NULL), 0);
    assert_memory_equal(to, from, BYTES);
    assert_int_equal(to[BYTES], 0);
    free(from);
    free(to);
}

TEST(test_large_zero) {
    enum { BYTES = (3 << 20) + 5 };
    unsigned char *memory = (unsigned char *)xmalloc(BYTES + 1), *zeros = (unsigned char *)xcalloc(1, BYTES);
    memset(memory, 1, BYTES + 1);
    host_copy_parallel(memory, NULL, BYTES);
    assert_memory_equal(memory, zeros, BYTES);
    assert_int_equal(memory[BYTES], 1);
    free(memory);
    free(zeros);
}

// ---- memory of control groups, from copies of the kernel's files

static void write_in(const char *folder, const char *name, const char *text) {
    char path[PATH_LENGTH];
    format_path(path, "%s/%s", folder, name);
    for (char *slash = path + strlen(temp_dir()) + 1; (slash = strchr(slash, '/')); *slash++ = '/') {
        *slash = 0;
        mkdir(path, 0700);
    }
    write_text(path, text);
}

static void assert_group(const char *root, size_t limit, size_t room) {
    size_t found, left;
    group_memory(&found, &left, root);
    assert_int_equal(found, limit);
    assert_int_equal(left, room);
}

TEST(test_control_groups_2) {
    const char *root = temp_path("groups2");
    assert_group(root, SIZE_MAX, SIZE_MAX);  // a system without control groups
    // a container sees its own group as the root
    write_in(root, "proc/self/cgroup", "0::/\n");
    write_in(root, "sys/fs/cgroup/memory.max", "64000\n");
    write_in(root, "sys/fs/cgroup/memory.current", "63000\n");
    assert_group(root, 64000, 1000);
    write_in(root, "sys/fs/cgroup/memory.stat", "anon 2000\nfile 61000\ninactive_file 60000\nactive_file 1000\n");
    assert_group(root, 64000, 61000);
    // groups above this one have limits too
    write_in(root, "proc/self/cgroup", "0::/pod/job\n");
    write_in(root, "sys/fs/cgroup/pod/memory.max", "9000\n");
    write_in(root, "sys/fs/cgroup/pod/memory.current", "8500\n");
    write_in(root, "sys/fs/cgroup/pod/job/memory.max", "max\n");
    write_in(root, "sys/fs/cgroup/pod/job/memory.current", "8000\n");
    assert_group(root, 9000, 500);
    write_in(root, "sys/fs/cgroup/pod/job/memory.max", "8100\n");
    assert_group(root, 8100, 100);
    write_in(root, "sys/fs/cgroup/memory.stat", "inactive_file 0\n");
    write_in(root, "sys/fs/cgroup/memory.current", "63950\n");
    assert_group(root, 8100, 50);
}

TEST(test_control_groups_1) {
    const char *root = temp_path("groups1");
    write_in(root, "proc/self/cgroup", "5:cpu,cpuacct:/docker/1\n4:memory:/docker/1\n1:name=systemd:/docker/1\n0::/\n");
    write_in(root, "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    write_in(root, "sys/fs/cgroup/memory/memory.usage_in_bytes", "70000\n");
    assert_group(root, 9223372036854771712u, 9223372036854771712u - 70000);  // no limit: more than any machine has
    write_in(root, "sys/fs/cgroup/memory/docker/1/memory.limit_in_bytes", "5000\n");
    write_in(root, "sys/fs/cgroup/memory/docker/1/memory.usage_in_bytes", "4900\n");
    write_in(root, "sys/fs/cgroup/memory/docker/1/memory.stat", "inactive_file 1\ntotal_inactive_file 4000\n");
    assert_group(root, 5000, 4100);
}

int main(void) { return run_all_tests("memory"); }

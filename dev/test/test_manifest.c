/* manifest.json: every byte of every file of a folder is covered, the manifest's own bytes too. */
#include "dev/test/testing.h"
#include "llmc/files/manifest.h"

static const char *const names[] = {"b.bin", "a.txt", "empty", "large.bin"};
enum { NUM_NAMES = 4, LARGE = 9 << 20 };  // LARGE: three parts of file_sum

static char folder[PATH_LENGTH], why[512];

static const char *joined(const char *name) {
    static char path[2 * PATH_LENGTH];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void put(const char *name, const void *bytes, size_t n) {
    FILE *file = fopen(joined(name), "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
}

static uint8_t *large_bytes(void) {
    static uint8_t bytes[LARGE];
    uint32_t x = 7;
    for (size_t i = 0; i < LARGE; i++) { bytes[i] = (uint8_t)((x = x * 1664525 + 1013904223) >> 24); }
    return bytes;
}

static int make_folder(void **state) {
    (void)state;
    uint8_t *large = large_bytes();
    const FileSum known = {LARGE, crc32c(0, large, LARGE)};
    const char *const large_name = names[3];
    format_path(folder, "%s/folder", temp_dir());
    mkdir(folder, 0777);
    put("b.bin", "0123456789", 10);
    put("a.txt", "text\n", 5);
    put("empty", "", 0);
    put("large.bin", large, LARGE);
    return manifest_write(folder, &large_name, &known, 1);
}

static void assert_damaged(const char *words) {
    ManifestCheck check = strncmp(words, MANIFEST, strlen(MANIFEST)) == 0 ? MANIFEST_INVALID : MANIFEST_DAMAGED;
    assert_int_equal(manifest_check(folder, NULL, why, sizeof why), check);
    if (!strstr(why, words)) { fail_msg("expected '%s' in '%s'", words, why); }
}

static void test_good(void **state) {
    (void)state;
    assert_int_equal(manifest_check(folder, NULL, why, sizeof why), MANIFEST_GOOD);
    put("another", "of no interest", 14);
    assert_int_equal(manifest_check(folder, NULL, why, sizeof why), MANIFEST_GOOD);
    unlink(joined(MANIFEST));
    assert_int_equal(manifest_check(folder, NULL, why, sizeof why), MANIFEST_MISSING);
    unlink(joined("another"));
    assert_int_equal(make_folder(NULL), 0);
}

// flips a bit at `offset` of a file, or flips it back
static void flip(const char *name, off_t offset, int bit) {
    uint8_t byte;
    int fd = open(joined(name), O_RDWR);
    assert_int_equal(pread(fd, &byte, 1, offset), 1);
    byte ^= (uint8_t)(1 << bit);
    assert_int_equal(pwrite(fd, &byte, 1, offset), 1);
    close(fd);
}

static off_t size_of(const char *name) {
    struct stat info;
    assert_int_equal(stat(joined(name), &info), 0);
    return info.st_size;
}

// each bit of the manifest and of the small files; a byte in every 65521 of the large one, its first and its last
static void test_flips(void **state) {
    (void)state;
    static const char *const small[] = {MANIFEST, "b.bin", "a.txt"};
    for (int i = 0; i < 3; i++) {
        for (off_t at = 0; at < size_of(small[i]); at++) {
            for (int bit = 0; bit < 8; bit++) {
                flip(small[i], at, bit);
                assert_damaged(small[i]);
                flip(small[i], at, bit);
            }
        }
    }
    for (off_t at = 0; at < LARGE; at += 65521) {
        off_t place = at + 65521 < LARGE ? at : (off_t)LARGE - 1;
        flip("large.bin", place, 3);
        assert_damaged("large.bin has CRC32C");
        flip("large.bin", place, 3);
    }
    assert_int_equal(manifest_check(folder, NULL, why, sizeof why), MANIFEST_GOOD);
}

static void test_sizes(void **state) {
    (void)state;
    for (int i = 0; i < NUM_NAMES; i++) {
        off_t size = size_of(names[i]);
        char longer[64];
        snprintf(longer, sizeof longer, "%s has %lld bytes, expected %lld", names[i], (long long)size + 1,
                 (long long)size);
        assert_int_equal(truncate(joined(names[i]), size + 1), 0);
        assert_damaged(longer);
        assert_int_equal(truncate(joined(names[i]), size), 0);
        if (size == 0) { continue; }
        assert_int_equal(truncate(joined(names[i]), size - 1), 0);
        assert_damaged("bytes, expected");
        assert_int_equal(make_folder(NULL), 0);
    }
    off_t size = size_of(MANIFEST);
    for (off_t cut = 0; cut < size; cut += 7) {
        assert_int_equal(truncate(joined(MANIFEST), cut), 0);
        assert_damaged(MANIFEST " has a wrong byte");
        assert_int_equal(make_folder(NULL), 0);
    }
    assert_int_equal(truncate(joined(MANIFEST), size + 1), 0);  // a NUL byte
    assert_damaged(MANIFEST " has a wrong byte");
    assert_int_equal(make_folder(NULL), 0);
}

static void test_missing_and_excepted(void **state) {
    (void)state;
    unlink(joined("b.bin"));
    assert_damaged("b.bin could not be read: No such file");
    assert_int_equal(manifest_check(folder, "b.bin", why, sizeof why), MANIFEST_GOOD);
    mkdir(joined("b.bin"), 0777);
    assert_damaged("b.bin could not be read");
    rmdir(joined("b.bin"));
    assert_int_equal(make_folder(NULL), 0);
}

// the manifest of one file, with correct sums of its own
static void put_manifest(const char *name, FileSum sum) {
    cJSON *files = cJSON_CreateObject();
    manifest_add(files, name, sum);
    char *text = manifest_text(files);
    FILE *file = fopen(joined(MANIFEST), "w");
    fputs(text, file);
    fclose(file);
    free(text);
    cJSON_Delete(files);
}

// A manifest that another program wrote does not lead out of the folder, and its names cannot clear the terminal.
static void test_hostile_names(void **state) {
    (void)state;
    char longer[NAME_MAX + 2];
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = 0;
    const FileSum sum = {5, crc32c(0, "text\n", 5)};
    const char *const hostile[] = {"../folder/a.txt", "/etc/passwd", "x/../a.txt", "..",   ".",
                                   "a.txt\033[2J",    "a.txt\n",     "a.txt\177",  longer, ""};
    for (size_t i = 0; i < sizeof hostile / sizeof hostile[0]; i++) {
        put_manifest(hostile[i], sum);
        assert_damaged(MANIFEST " has an entry of another program");
    }
    longer[NAME_MAX] = 0;
    put_manifest(longer, sum);
    assert_damaged("could not be read: No such file");
    assert_int_equal(make_folder(NULL), 0);
}

static void test_hostile_crc(void **state) {
    (void)state;
    const char *const hostile[] = {"\033[2J", "", "0A1B2C3D", "0a1b2c3d4"};
    for (int i = 0; i < 4; i++) {
        cJSON *files = cJSON_CreateObject();
        cJSON *entry = cJSON_AddObjectToObject(files, "a.txt");
        cJSON_AddNumberToObject(entry, "bytes", 5);
        cJSON_AddStringToObject(entry, "crc32c", hostile[i]);
        assert_int_equal(manifest_check_file(folder, entry, why, sizeof why), MANIFEST_INVALID);
        if (!strstr(why, "entry of another program")) { fail_msg("'%s'", why); }
        cJSON_Delete(files);
    }
}

// two folders with the same files have the same manifest, whatever the order in which they were written
static void test_same_bytes(void **state) {
    (void)state;
    char first[4096], again[4096];
    FILE *file = fopen(joined(MANIFEST), "r");
    first[fread(first, 1, sizeof first - 1, file)] = 0;
    fclose(file);
    for (int i = 0; i < NUM_NAMES; i++) { unlink(joined(names[i])); }
    assert_int_equal(make_folder(NULL), 0);
    file = fopen(joined(MANIFEST), "r");
    again[fread(again, 1, sizeof again - 1, file)] = 0;
    fclose(file);
    assert_string_equal(first, again);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good),          cmocka_unit_test(test_flips),
        cmocka_unit_test(test_sizes),         cmocka_unit_test(test_missing_and_excepted),
        cmocka_unit_test(test_hostile_names), cmocka_unit_test(test_hostile_crc),
        cmocka_unit_test(test_same_bytes),
    };
    return cmocka_run_group_tests(tests, make_folder, NULL);
}

/* manifest.json: no byte of a file in it can change unnoticed, nor can a name lead out of the folder. */
#include "dev/test/testing.h"
#include "llmc/checkpoint/manifest.h"

static const char *const names[] = {"large.bin", "a.txt", "b.bin", "empty"};
enum { NUM_NAMES = 4, LARGE = 9 << 20 };  // LARGE: three parts of file_crc

static char folder[PATH_LENGTH], why[512];

static const char *path_of(const char *name) {
    static char path[2 * PATH_LENGTH];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void put(const char *name, const void *bytes, size_t n) { write_bytes(path_of(name), bytes, n); }

// The folder and its manifest. The sum of large.bin is given, as that of a file which several ranks have written.
static int make_folder(void) {
    static uint8_t large[LARGE];
    uint32_t x = 7;
    for (size_t i = 0; i < LARGE; i++) { large[i] = (uint8_t)((x = x * 1664525 + 1013904223) >> 24); }
    uint32_t known = crc32c_part(large + 1000, LARGE - 1000, 0) ^ crc32c_part(large, 1000, LARGE - 1000);
    known = crc32c_whole(known, LARGE);
    format_path(folder, "%s/folder", temp_dir());
    mkdir(folder, 0777);
    put(names[0], large, LARGE);
    put(names[1], "text\n", 5);
    put(names[2], "0123456789", 10);
    put(names[3], "", 0);
    unlink(path_of(MANIFEST));
    return manifest_write(folder, names, &known, 1);
}

static bool agrees(const char *except) { return manifest_check(folder, except, why, sizeof why) == 0; }

static void assert_damaged(const char *words) {
    assert_false(agrees(strncmp(words, names[0], 5) == 0 ? NULL : names[0]));
    if (!strstr(why, words)) { fail_msg("expected '%s' in '%s'", words, why); }
}

TEST(test_good) {
    assert_true(agrees(NULL));
    const char *text = read_file(path_of(MANIFEST), NULL);
    for (int i = 0; i < NUM_NAMES; i++) { assert_non_null(strstr(text, names[i])); }
    put("another", "of no interest", 14);
    assert_true(agrees(NULL));
    unlink(path_of("another"));
    unlink(path_of(MANIFEST));
    assert_true(agrees(NULL));
    assert_int_equal(make_folder(), 0);
}

// flips a bit at `offset` of a file, or flips it back
static void flip(const char *name, off_t offset, int bit) {
    uint8_t byte;
    int fd = open(path_of(name), O_RDWR);
    assert_int_equal(pread(fd, &byte, 1, offset), 1);
    byte ^= (uint8_t)(1 << bit);
    assert_int_equal(pwrite(fd, &byte, 1, offset), 1);
    close(fd);
}

static off_t size_of(const char *name) {
    struct stat info;
    assert_int_equal(stat(path_of(name), &info), 0);
    return info.st_size;
}

// each bit of the small files; a byte in every 65521 of the large one, its first and its last
TEST(test_flips) {
    for (int i = 1; i < 3; i++) {
        for (off_t at = 0; at < 8 * size_of(names[i]); at++) {
            flip(names[i], at / 8, (int)(at % 8));
            assert_damaged(names[i]);
            flip(names[i], at / 8, (int)(at % 8));
        }
    }
    for (off_t at = 0; at < LARGE; at += 65521) {
        off_t place = at + 65521 < LARGE ? at : (off_t)LARGE - 1;
        flip(names[0], place, 3);
        assert_damaged("large.bin has");
        flip(names[0], place, 3);
    }
    assert_true(agrees(NULL));
}

// With any bit of the manifest flipped, a wrong byte in another file is still noticed.
TEST(test_flips_of_manifest) {
    flip("a.txt", 2, 1);
    for (off_t at = 0; at < 8 * size_of(MANIFEST); at++) {
        flip(MANIFEST, at / 8, (int)(at % 8));
        assert_false(agrees(names[0]));
        flip(MANIFEST, at / 8, (int)(at % 8));
    }
    flip("a.txt", 2, 1);
    assert_true(agrees(NULL));
}

static void cut(void) { assert_int_equal(truncate(path_of("b.bin"), 9), 0); }
static void lengthen(void) { assert_int_equal(truncate(path_of("empty"), 1), 0); }
static void delete_file(void) { unlink(path_of("b.bin")); }
static void make_it_a_folder(void) {
    unlink(path_of("b.bin"));
    mkdir(path_of("b.bin"), 0777);
}
static void make_it_a_pipe(void) {
    unlink(path_of("b.bin"));
    mkfifo(path_of("b.bin"), 0666);
}
static void cut_manifest(void) { assert_int_equal(truncate(path_of(MANIFEST), 40), 0); }
static void empty_manifest(void) { assert_int_equal(truncate(path_of(MANIFEST), 0), 0); }
static void make_manifest_a_pipe(void) {
    unlink(path_of(MANIFEST));
    mkfifo(path_of(MANIFEST), 0666);
}

TEST(test_damage) {
    static const struct {
        void (*damage)(void);
        const char *says;
    } cases[] = {{cut, "b.bin has 9 bytes and CRC32C "},
                 {lengthen, "empty has 1 bytes and CRC32C 527d5351, expected 0 and 00000000"},
                 {delete_file, "b.bin could not be read: No such file"},
                 {make_it_a_folder, "b.bin could not be read: it is a folder, a device"},
                 {make_it_a_pipe, "b.bin could not be read: it is a folder, a device"},
                 {cut_manifest, MANIFEST " could not be read: it lists no files"},
                 {empty_manifest, MANIFEST " could not be read: it lists no files"},
                 {make_manifest_a_pipe, MANIFEST " could not be read: it is a folder, a device"}};
    for (size_t i = 0; i < LEN(cases); i++) {
        cases[i].damage();
        assert_damaged(cases[i].says);
        if (strstr(cases[i].says, "b.bin")) { assert_true(agrees("b.bin")); }
        remove(path_of("b.bin"));
        assert_int_equal(make_folder(), 0);
    }
}

// A file that cannot be opened gives its errno; a difference gives EBADMSG.
TEST(test_errors) {
    struct rlimit usual_limit, none;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &usual_limit), 0);
    none = usual_limit;
    none.rlim_cur = 0;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    int error = manifest_check(folder, NULL, why, sizeof why);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &usual_limit), 0);
    assert_int_equal(error, EMFILE);
    assert_string_equal(why, MANIFEST " could not be read: Too many open files");
    cut();
    assert_int_equal(manifest_check(folder, NULL, why, sizeof why), EBADMSG);
    delete_file();
    assert_int_equal(manifest_check(folder, NULL, why, sizeof why), ENOENT);
    assert_int_equal(make_folder(), 0);
}

// manifests of other programs
TEST(test_hostile) {
    static const char *const cases[][2] = {
        {"{\"files\":{\"../folder/a.txt\":{\"bytes\":5,\"crc32c\":\"0\"}}}", "an entry of another program"},
        {"{\"files\":{\"/etc/passwd\":{\"bytes\":5,\"crc32c\":\"0\"}}}", "an entry of another program"},
        {"{\"files\":{\"x/../a.txt\":{\"bytes\":5,\"crc32c\":\"0\"}}}", "an entry of another program"},
        {"{\"files\":{\"..\":{\"bytes\":5,\"crc32c\":\"0\"}}}", "an entry of another program"},
        {"{\"files\":{\"a.txt\":{\"bytes\":\"5\",\"crc32c\":\"0\"}}}", "an entry of another program"},
        {"{\"files\":{\"a.txt\":{\"bytes\":5}}}", "an entry of another program"},
        {"{\"files\":{\"a.txt\":\"0\"}}", "an entry of another program"},
        {"{\"files\":{\"\":{\"bytes\":5,\"crc32c\":\"0\"}}}", "could not be read: it is a folder, a device"},
        {"{\"files\":{\"a.txt\":{\"bytes\":5,\"crc32c\":\"0123456789abcdef\"}}}", "expected 5 and 01234567"},
        {"{\"files\":{\"empty\":{\"bytes\":1,\"crc32c\":\"00000000\"}}}", "expected 1 and 00000000"},
        {"{\"files\":[\"a.txt\"]}", "lists no files"},
        {"{\"name\":\"a model\"}", "lists no files"}};
    for (size_t i = 0; i < LEN(cases); i++) {
        put(MANIFEST, cases[i][0], strlen(cases[i][0]));
        assert_damaged(cases[i][1]);
    }
    assert_int_equal(make_folder(), 0);
}

int main(void) { return make_folder() != 0 || run_all_tests("manifest"); }

/*
How files are created: their modes under a umask of 0, links in their place, folders that are links, and the files of
~/.cache that are not the user's.
*/
#include "testing.h"
#include "llmc/checkpoint/checkpoint.h"
#include "llmc/common/cache_file.h"

static int mode_of(const char *path) {
    struct stat info;
    assert_int_equal(lstat(path, &info), 0);
    assert_true(S_ISREG(info.st_mode) || S_ISDIR(info.st_mode));
    return (int)(info.st_mode & 07777);
}

static void assert_content(const char *path, const char *expected) {
    char content[64] = "";
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    assert_int_equal(fread(content, 1, sizeof content - 1, file), strlen(expected));
    assert_string_equal(content, expected);
    fclose(file);
}

static void put(FILE *file, const char *text) {
    assert_non_null(file);
    assert_int_equal(fputs(text, file) >= 0, 1);
    assert_int_equal(fclose(file), 0);
}

TEST(test_create) {
    const char *victim = write_file("victim", "precious", 8), *path = temp_path("created");
    mode_t before = umask(0);
    put(create_file(path), "one");
    put(create_file(path), "two");
    assert_content(path, "two");
    assert_int_equal(mode_of(path), 0644);
    umask(before);
    unlink(path);
    assert_int_equal(symlink(victim, path), 0);
    put(create_file(path), "five");
    assert_content(path, "five");
    assert_content(victim, "precious");
    assert_int_equal(mode_of(path) & 022, 0);
    unlink(path);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_null(create_file(path));
    rmdir(path);
}

TEST(test_remove_folder) {
    char link[256], inside[PATH_LENGTH], folder[256];
    snprintf(folder, sizeof folder, "%s", temp_path("folder"));
    snprintf(link, sizeof link, "%s", temp_path("link"));
    snprintf(inside, sizeof inside, "%s/file", folder);
    assert_int_equal(mkdir(folder, 0700), 0);
    put(create_file(inside), "precious");
    assert_int_equal(symlink(folder, link), 0);
    remove_folder(link);
    assert_int_not_equal(access(link, F_OK), 0);
    assert_content(inside, "precious");
    const char *victim = write_file("victim", "precious", 8);
    snprintf(inside, sizeof inside, "%s/a_link", folder);
    assert_int_equal(symlink(victim, inside), 0);
    remove_folder(folder);
    assert_int_not_equal(access(folder, F_OK), 0);
    assert_content(victim, "precious");
    remove_folder(victim);  // no folder
    assert_content(victim, "precious");
}

// cache_path in a child, which prints the note to stderr: exit 0 if there is a path
static void find_cache(void *unused) {
    (void)unused;
    char path[2 * PATH_LENGTH];
    if (!*cache_path(path, "NO_VARIABLE", "cache.txt")) { _exit(1); }
}

static bool is_used(void) {
    char output[4096];
    int status = run_in_child(output, sizeof output, find_cache, NULL);
    assert_int_equal(is_one_line(output), status != 0);
    return status == 0;
}

TEST(test_cache) {
    char home[256], path[2 * PATH_LENGTH];
    snprintf(home, sizeof home, "%s", temp_path("home"));
    assert_int_equal(mkdir(home, 0700), 0);
    setenv("HOME", home, 1);
    mode_t before = umask(0);
    assert_ptr_equal(cache_path(path, "NO_VARIABLE", "cache.txt"), path);
    put(open_written(path, O_WRONLY | O_CREAT | O_APPEND, "a"), "a line\n");
    assert_int_equal(mode_of(path), 0644);
    *strrchr(path, '/') = 0;
    assert_int_equal(mode_of(path), 0755);
    cache_path(path, "NO_VARIABLE", "cache.txt");
    umask(before);
    assert_true(is_used());
    chmod(path, 0646);
    assert_false(is_used());
    chmod(path, 0600);
    assert_true(is_used());
    if (geteuid() == 0) {
        assert_int_equal(chown(path, 12345, 0), 0);
        assert_false(is_used());
    }
}

// The last whole line of a key counts; anything else in the file is ignored.
TEST(test_cache_entries) {
    const char *path = temp_path("entries");
    char value[8] = "none";
    assert_false(cache_find(path, "a GPU\tkey", value, sizeof value));
    assert_int_equal(cache_add(path, "a GPU\tkey", "1\t2"), 0);
    assert_int_equal(cache_add(path, "a GPU", "other"), 0);
    assert_true(cache_find(path, "a GPU\tkey", value, sizeof value));
    assert_string_equal(value, "1\t2");
    assert_int_equal(cache_add(path, "a GPU\tkey", "longer than the room"), 0);
    put(open_written(path, O_WRONLY | O_APPEND, "a"), "\n\t\na GPU\tkey2\t5\na GPU\tkey\na GPU\tkey\tcut short");
    assert_true(cache_find(path, "a GPU\tkey", value, sizeof value));
    assert_string_equal(value, "longer ");
    assert_false(cache_find(path, "GPU", value, sizeof value));
    assert_int_equal(cache_add(temp_path("no/folder"), "key", "value"), ENOENT);
    assert_int_equal(cache_add("", "key", "value"), ENOENT);
}

TEST(test_hex) {
    int number = 0;
    unsigned char bytes[2] = {0, 0};
    const char *const wrong[] = {"",       "3",      "0aff",     "\t0aff",  "x\t0aff",  "12abff",
                                 "3 0aff", "3\t0af", "3\t0aff0", "3\t0aFF", "3\t0a\tff"};
    assert_true(parse_number_and_hex("3\t0aff\t12.5", &number, bytes, 2));
    assert_int_equal(number, 3);
    assert_int_equal(bytes[0], 10);
    assert_int_equal(bytes[1], 255);
    for (size_t i = 0; i < LEN(wrong); i++) { assert_false(parse_number_and_hex(wrong[i], &number, bytes, 2)); }
}

int main(void) { return run_all_tests("create_file"); }

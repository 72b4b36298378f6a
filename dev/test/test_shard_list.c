/* The data files in state.json: which differences are found, and how they are named. */
#include "dev/test/testing.h"
#include "llmc/data/shard_list.h"

static TokenFiles open_files(void) {
    char pattern[PATH_LENGTH];
    format_path(pattern, "%s/*.txt", temp_dir());
    return token_files_open("-i", pattern);
}

static cJSON *list_now(void) {
    TokenFiles files = open_files();
    cJSON *list = shard_list(&files);
    token_files_close(&files);
    return list;
}

static void write_three(void) {
    write_file("a.txt", "first", 5);
    write_file("b.txt", "second", 6);
    write_file("c.txt", "third", 5);
}

static void assert_difference(const cJSON *saved, const char *expected) {
    char text[256] = "";
    cJSON *now = list_now();
    assert_int_equal(shard_list_difference(text, sizeof text, saved, now), *expected != 0);
    assert_string_equal(text, expected);
    cJSON_Delete(now);
}

TEST(test_differences) {
    write_three();
    cJSON *saved = list_now();
    assert_difference(saved, "");
    write_file("b.txt", "secone", 6);
    assert_difference(saved, "the content of b.txt has changed");
    write_file("b.txt", "sec", 3);
    assert_difference(saved, "b.txt has 3 bytes, expected 6");
    unlink(temp_path("b.txt"));
    assert_difference(saved, "b.txt is missing");
    write_three();
    write_file("d.txt", "more", 4);
    assert_difference(saved, "d.txt is new");
    unlink(temp_path("d.txt"));
    assert_difference(saved, "");
    rename(temp_path("b.txt"), temp_path("renamed.txt"));
    assert_difference(saved, "b.txt is missing");
    rename(temp_path("renamed.txt"), temp_path("b.txt"));
    write_file("a2.txt", "more", 4);
    assert_difference(saved, "a2.txt is new");
    unlink(temp_path("a2.txt"));
    cJSON_AddItemToArray(saved, cJSON_DetachItemFromArray(saved, 0));
    assert_difference(saved, "the list of files differs from b.txt on");
    cJSON_AddItemToArray(saved, cJSON_DetachItemFromArray(saved, 0));
    cJSON_AddItemToArray(saved, cJSON_DetachItemFromArray(saved, 0));
    assert_difference(saved, "");
    cJSON_AddItemToArray(saved, cJSON_CreateObject());  // an entry without a name, in a state.json that was edited
    assert_difference(saved, "the list of files differs from its end on");
    cJSON_Delete(saved);
}

// A missing file changes the blocks that the CRC32C of all others are of.
TEST(test_other_blocks) {
    cJSON *lists[2];
    for (int i = 0; i < 2; i++) {
        lists[i] = cJSON_CreateArray();
        for (int file = 0; file < 5; file++) {
            char name[16];
            if (i == 1 && file == 3) { continue; }
            snprintf(name, sizeof name, "x%d.bin", file);
            cJSON *entry = cJSON_CreateObject();
            cJSON_AddStringToObject(entry, "file", name);
            cJSON_AddNumberToObject(entry, "bytes", 2e8);
            cJSON_AddStringToObject(entry, "crc32c", i == 0 ? "00000001" : "00000002");
            cJSON_AddItemToArray(lists[i], entry);
        }
    }
    char text[256] = "";
    assert_true(shard_list_difference(text, sizeof text, lists[0], lists[1]));
    assert_string_equal(text, "x3.bin is missing");
    assert_true(shard_list_difference(text, sizeof text, lists[1], lists[0]));
    assert_string_equal(text, "x3.bin is new");
    cJSON_Delete(lists[0]);
    cJSON_Delete(lists[1]);
}

// two folders with a file of one name each
TEST(test_same_names) {
    char pattern[PATH_LENGTH];
    mkdir(temp_path("one"), 0755);
    mkdir(temp_path("two"), 0755);
    write_file("one/x.txt", "short", 5);
    write_file("two/x.txt", "longer", 6);
    format_path(pattern, "%s/*/x.txt", temp_dir());
    char text[256] = "";
    TokenFiles files = token_files_open("-i", pattern);
    cJSON *saved = shard_list(&files);
    assert_false(shard_list_difference(text, sizeof text, saved, saved));
    token_files_close(&files);
    write_file("two/x.txt", "larger", 6);
    files = token_files_open("-i", pattern);
    cJSON *now = shard_list(&files);
    assert_true(shard_list_difference(text, sizeof text, saved, now));
    assert_string_equal(text, "the content of x.txt has changed");
    token_files_close(&files);
    cJSON_Delete(saved);
    cJSON_Delete(now);
}

TEST(test_text) {
    write_three();
    cJSON *list = list_now();
    char *text = cJSON_PrintUnformatted(list);
    char expected[128];
    snprintf(expected, sizeof expected, "{\"file\":\"c.txt\",\"bytes\":5,\"crc32c\":\"%08x\"}]", crc32c(0, "third", 5));
    assert_non_null(strstr(text, expected));
    free(text);
    cJSON_Delete(list);
}

// A file larger than all blocks together: the first and the last block count, and the same number of blocks between.
TEST(test_samples) {
    enum { BLOCKS = 4 };
    const uint64_t bytes = 100 * (uint64_t)SHARD_BLOCK + 17;
    const char *path = temp_path("sampled.bin");
    FILE *file = fopen(path, "wb");
    for (uint64_t i = 0; i < bytes; i++) { fputc((int)(i * i >> 7 & 255), file); }
    fclose(file);
    uint32_t whole = shard_crc("-i", path, bytes, UINT64_MAX), sampled = shard_crc("-i", path, bytes, BLOCKS);
    const uint64_t distance = (bytes - SHARD_BLOCK) / (BLOCKS - 1);
    const struct {
        uint64_t at;
        bool is_sampled;
    } places[] = {{0, true},        {SHARD_BLOCK - 1, true}, {SHARD_BLOCK, false}, {distance - 1, false},
                  {distance, true}, {bytes - 1, true},       {bytes / 2, false}};
    for (size_t i = 0; i < LEN(places); i++) {
        for (int flips = 0; flips < 2; flips++) {
            int fd = open(path, O_RDWR);
            uint8_t byte;
            assert_int_equal(pread(fd, &byte, 1, (off_t)places[i].at), 1);
            byte ^= 16;
            assert_int_equal(pwrite(fd, &byte, 1, (off_t)places[i].at), 1);
            close(fd);
            bool differs = flips == 0;
            assert_int_equal(shard_crc("-i", path, bytes, UINT64_MAX) != whole, differs);
            assert_int_equal(shard_crc("-i", path, bytes, BLOCKS) != sampled, differs && places[i].is_sampled);
        }
    }
    unlink(path);
}

int main(void) { return run_all_tests("shard_list"); }

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

// expected: without the hashes; "": no difference
static void assert_difference(const cJSON *saved, const char *expected) {
    char text[256] = "";
    cJSON *now = list_now();
    assert_int_equal(shard_list_difference(text, sizeof text, saved, now), *expected != 0);
    for (char *hash; (hash = strstr(text, " (hash")) != NULL;) { memmove(hash, strchr(hash, ')') + 1, strlen(hash)); }
    assert_string_equal(text, expected);
    cJSON_Delete(now);
}

TEST(test_differences) {
    write_three();
    cJSON *saved = list_now();
    assert_difference(saved, "");
    write_file("b.txt", "secone", 6);
    assert_difference(saved, "found b.txt of 6 bytes, expected b.txt of 6 bytes");
    write_file("b.txt", "sec", 3);
    assert_difference(saved, "found b.txt of 3 bytes, expected b.txt of 6 bytes");
    unlink(temp_path("b.txt"));
    assert_difference(saved, "found c.txt of 5 bytes, expected b.txt of 6 bytes");
    write_three();
    write_file("d.txt", "more", 4);
    assert_difference(saved, "found d.txt of 4 bytes, expected no further file");
    unlink(temp_path("d.txt"));
    assert_difference(saved, "");
    unlink(temp_path("c.txt"));
    assert_difference(saved, "found no further file, expected c.txt of 5 bytes");
    write_three();
    cJSON_AddItemToArray(saved, cJSON_DetachItemFromArray(saved, 0));
    assert_difference(saved, "found a.txt of 5 bytes, expected b.txt of 6 bytes");
    cJSON_AddItemToArray(saved, cJSON_DetachItemFromArray(saved, 0));
    cJSON_AddItemToArray(saved, cJSON_DetachItemFromArray(saved, 0));
    assert_difference(saved, "");
    cJSON_AddItemToArray(saved, cJSON_CreateObject());  // an entry without a name, in a state.json that was edited
    cJSON *now = list_now();
    char text[256];
    assert_true(shard_list_difference(text, sizeof text, saved, now));
    assert_non_null(strstr(text, "found no further file, expected an entry of "));
    cJSON_Delete(now);
    cJSON_Delete(saved);
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
    assert_non_null(strstr(text, "found x.txt of 6 bytes (hash "));
    token_files_close(&files);
    cJSON_Delete(saved);
    cJSON_Delete(now);
}

// the form in state.json; an entry of an older version, with another hash or none, has no content to compare
TEST(test_entry) {
    write_three();
    cJSON *list = list_now();
    const cJSON *last = cJSON_GetArrayItem(list, 2);
    char *text = cJSON_PrintUnformatted(last), expected[128];
    snprintf(expected, sizeof expected, "{\"file\":\"c.txt\",\"bytes\":5,\"hash\":\"%016" PRIx64 "\"}",
             hash_file(0, "-i", temp_path("c.txt")));
    assert_string_equal(text, expected);
    free(text);
    cJSON_DeleteItemFromObject(cJSON_GetArrayItem(list, 1), "hash");
    write_file("b.txt", "secone", 6);
    assert_difference(list, "");
    cJSON_Delete(list);
}

int main(void) { return run_all_tests("shard_list"); }

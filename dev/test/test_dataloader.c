/*
The data loader: good and bad files, the order of sequences, and resuming from a position alone.
*/
#include "testing.h"
#include "llmc/data/dataloader.h"

enum { MAX_TOKENS = 4096 };

// writes NAME as a token shard of ids (n); returns the path
static const char *write_shard(const char *name, const uint16_t *ids, uint32_t n) {
    static uint8_t bytes[1024 + 2 * MAX_TOKENS];
    uint32_t header[256] = {TOKEN_MAGIC, TOKEN_VERSION, n};
    assert_true(n <= MAX_TOKENS);
    memcpy(bytes, header, sizeof header);
    memcpy(bytes + sizeof header, ids, 2 * (size_t)n);
    return write_file(name, bytes, sizeof header + 2 * (size_t)n);
}

// writes NAME as a shard of the ids first .. first + n - 1
static const char *write_counting_shard(const char *name, int first, int n) {
    uint16_t ids[MAX_TOKENS];
    for (int i = 0; i < n; i++) { ids[i] = (uint16_t)(first + i); }
    return write_shard(name, ids, (uint32_t)n);
}

static TokenFiles open_files(const char *pattern) { return token_files_open("-i", temp_path(pattern)); }

// three shards of 5, 2 and 8 sequences of length 4, one too short for any, all ids different
static TokenFiles open_four_shards(void) {
    write_counting_shard("four_a.bin", 0, 4 * 5 + 1);
    write_counting_shard("four_b.bin", 1000, 4);
    write_counting_shard("four_c.bin", 2000, 4 * 2 + 3);
    write_counting_shard("four_d.bin", 3000, 4 * 8 + 4);
    return open_files("four_*.bin");
}
enum { FOUR_T = 4, FOUR_SEQUENCES = 5 + 0 + 2 + 8 };

static void open_plain(DataLoader *loader, const TokenFiles *files, int B, int T) {
    dataloader_open(loader, files, B, T, false, 0, 0, 1, 65536);
}

static void close_all(DataLoader *loader, TokenFiles *files) {
    dataloader_close(loader);
    token_files_close(files);
}

static void assert_ids(const int *ids, const int *expected, int n) {
    for (int i = 0; i < n; i++) { assert_int_equal(ids[i], expected[i]); }
}

// ---- files

static void stop_at_open(void *pattern) { token_files_open("-i", (const char *)pattern); }

static void assert_refused(const char *path, const char *words) {
    char copy[256];
    snprintf(copy, sizeof copy, "%s", path);
    assert_stops(EXIT_BAD_INPUT, words, stop_at_open, copy);
}

TEST(test_header_defects) {
    static const struct {
        uint32_t header[4];
        size_t bytes;
        const char *words;
    } defects[] = {
        {{20240520, 1, 10}, 0, "is empty"},
        {{20240520, 1, 10}, 1, "(a text needs another name than .bin); doc/files.md says what files are read"},
        {{20240520, 1, 10}, 1023, "could not read the header"},
        {{20240520, 1, 0}, 1024, "is empty"},
        {{0x08EB3501, 1, 10}, 1044, "is no file of a known kind"},
        {{20240520, 2, 10}, 1044, "version 2 and a vocabulary of 0, expected 1044 bytes for its 10 tokens, version 1"},
        {{20240520, 1, 10, 65537}, 1044, "version 1 and a vocabulary of 65537, expected"},
        {{20240520, 1, 10, 1}, 1044, "a vocabulary of 1, expected"},
        {{20240520, 1, 10},
         1024,
         "has 1024 bytes, version 1 and a vocabulary of 0, expected 1044 bytes for its 10 tokens"},
        {{20240520, 1, 10}, 1043, "has 1043 bytes, version 1"},
        {{20240520, 1, 10}, 1045, "has 1045 bytes, version 1"},
        {{20240520, 1, 10}, 1064, "has 1064 bytes, version 1"},
        {{20240520, 1, 0x80000000u}, 1044, "expected 4294968320 bytes for its 2147483648 tokens"},
        {{20240520, 1, 0xFFFFFFFFu}, 1022 + 1024, "expected 8589935614 bytes for its 4294967295 tokens"},
    };
    for (size_t i = 0; i < LEN(defects); i++) {
        uint8_t bytes[2048] = {0};
        memcpy(bytes, defects[i].header, sizeof defects[i].header);
        const char *path = write_file("defect.bin", bytes, defects[i].bytes);
        assert_refused(path, defects[i].words);
        assert_refused(path, path);
    }
}

TEST(test_what_is_not_a_file) {
    assert_int_equal(mkdir(temp_path("folder"), 0700), 0);
    assert_int_equal(mkdir(temp_path("folder.bin"), 0700), 0);
    assert_int_equal(mkfifo(temp_path("fifo.txt"), 0600), 0);
    assert_int_equal(symlink("nowhere", temp_path("dangling.txt")), 0);
    write_file("empty.txt", "", 0);
    write_counting_shard("mixed_a.bin", 0, 10);
    write_file("mixed_b.txt", "some text", 9);
    assert_int_equal(chmod(write_file("secret.txt", "words", 5), 0), 0);
    static const char *const cases[][2] = {{"missing.txt", "missing.txt"},
                                           {"missing*.bin", "no file matches"},
                                           {"empty.txt", "empty.txt is empty"},
                                           {"folder", "folder: it is a folder, a device or a pipe"},
                                           {"folder.bin", "folder.bin: it is a folder"},
                                           {"fifo.txt", "fifo.txt: it is a folder"},
                                           {"dangling.txt", "could not open"},
                                           {"mixed_*", "matches token shards and text alike"},
                                           {"mixed_*", "mixed_b.txt"},
                                           {"secret.txt", "secret.txt: Permission denied"}};
    for (size_t i = 0; i < LEN(cases) - (geteuid() == 0); i++) {  // root may read anything
        assert_refused(temp_path(cases[i][0]), cases[i][1]);
    }
    assert_refused("", "no file matches ''");
    assert_refused("/dev/zero", "/dev/zero: it is a folder, a device or a pipe");
}

TEST(test_kinds) {
    write_counting_shard("kind_b.bin", 7, 10);
    write_counting_shard("kind_a.bin", 7, 20);
    TokenFiles shards = open_files("kind_*.bin");
    assert_int_equal(shards.num_files, 2);
    assert_string_equal(shards.files[0].path, temp_path("kind_a.bin"));
    assert_int_equal(shards.files[1].num_tokens, 10);
    assert_int_equal(shards.vocab_size, 50257);
    assert_false(token_files_are_text(&shards));
    assert_false(token_files_are_text(&shards));
    assert_int_equal(token_files_total(&shards), 30);
    token_files_close(&shards);

    write_file("text[1].bin.txt", "\xff\0z", 3);  // any byte is a token, and the name only ends in .txt
    TokenFiles text = open_files("text\\[1].bin.txt");
    assert_int_equal(text.vocab_size, 256);
    assert_true(token_files_are_text(&text));
    assert_true(token_files_are_text(&text));
    DataLoader loader;
    open_plain(&loader, &text, 1, 2);
    dataloader_next(&loader);
    assert_ids(loader.inputs, (int[]){255, 0}, 2);
    assert_ids(loader.targets, (int[]){0, 'z'}, 2);
    close_all(&loader, &text);
}

// ---- errors while reading are reported with their batch

// five sequences of length 4; the third and the fifth hold an id past a vocabulary of 300
static void open_bad_loader(DataLoader *loader, int B) {
    uint16_t ids[21] = {0};
    ids[9] = ids[18] = 300;
    write_shard("bad.bin", ids, 21);
    TokenFiles files = open_files("bad.bin");
    dataloader_open(loader, &files, B, 4, false, 0, 0, 1, 300);
    token_files_close(&files);
}

// reads batches of B until the bad one, which no earlier batch may report
static void stop_at_bad_id(void *B) {
    DataLoader loader;
    open_bad_loader(&loader, *(const int *)B);
    for (int i = 0; i < 3; i++) {
        if (loader.position != (uint64_t)i) { _exit(99); }
        dataloader_next(&loader);
    }
}

TEST(test_bad_id_in_a_batch) {
    int one = 1, five = 5;
    assert_stops(EXIT_BAD_INPUT, "bad.bin is id 300, but the vocabulary has ids 0 to 299", stop_at_bad_id, &one);
    assert_stops(EXIT_BAD_INPUT, "-i: token 9 of", stop_at_bad_id, &one);
    assert_stops(EXIT_BAD_INPUT, "-i: token 9 of", stop_at_bad_id, &five);
    DataLoader loader;
    open_bad_loader(&loader, 1);
    dataloader_next(&loader);
    dataloader_next(&loader);     // has read the bad one ahead
    dataloader_seek(&loader, 3);  // and forgets it
    dataloader_next(&loader);
    assert_int_equal(loader.position, 4);
    dataloader_close(&loader);
}

// ---- bad ids are found before the first step

enum { FIVE_BAD_0 = 2, FIVE_BAD_1 = 4 };

// five shards of one sequence of length 4, two of which end with a bad id
static void open_five(DataLoader *loader, bool shuffle, uint64_t seed, int rank, int num_ranks, int vocab_size) {
    for (int f = 0; f < 5; f++) {
        char name[] = "five_0.bin";
        uint16_t ids[5] = {(uint16_t)f, 0, 0, 0, f == FIVE_BAD_0 || f == FIVE_BAD_1 ? 300 : 0};
        name[5] = (char)('0' + f);
        write_shard(name, ids, 5);
    }
    TokenFiles files = open_files("five_*.bin");
    dataloader_open(loader, &files, 1, 4, shuffle, seed, rank, num_ranks, vocab_size);
    token_files_close(&files);
}

typedef struct {
    bool shuffle;
    int rank, num_ranks, vocab_size;
    double count;
    uint64_t seed;
} IdCheck;

static void check_five(void *argument) {
    const IdCheck *c = (const IdCheck *)argument;
    DataLoader loader;
    open_five(&loader, c->shuffle, c->seed, c->rank, c->num_ranks, c->vocab_size);
    require_ids(&loader, c->count);
    dataloader_close(&loader);
}

TEST(test_bad_ids_before_the_first_step) {
    // in order, rank 0 of 2 takes the files 0, 2 and 4
    IdCheck good[] = {{false, 0, 1, 300, 2, 0}, {false, 0, 1, 301, INFINITY, 0}, {false, 1, 2, 300, INFINITY, 0}};
    IdCheck bad[] = {{false, 0, 1, 300, 2.5, 0}, {false, 0, 2, 300, 3, 0}, {true, 0, 1, 300, INFINITY, 0}};
    for (size_t i = 0; i < LEN(good); i++) { check_five(&good[i]); }
    for (size_t i = 0; i < LEN(bad); i++) {
        assert_stops(EXIT_BAD_INPUT, "is id 300, but the vocabulary has ids 0 to 299", check_five, &bad[i]);
    }
}

// The files that are checked are those that the run reads.
TEST(test_the_files_that_are_checked) {
    int stopped = 0;
    for (uint64_t seed = 0; seed < 8; seed++) {
        for (int count = 1; count < 5; count++) {
            DataLoader loader;
            bool reads_bad = false;
            open_five(&loader, true, seed, 0, 1, 301);
            for (int i = 0; i < count; i++) {
                dataloader_next(&loader);
                reads_bad |= loader.targets[3] == 300;
            }
            dataloader_close(&loader);
            IdCheck check = {true, 0, 1, 300, count, seed};
            stopped += reads_bad;
            if (reads_bad) {
                assert_stops(EXIT_BAD_INPUT, "is id 300", check_five, &check);
            } else {
                check_five(&check);
            }
        }
    }
    assert_in_range(stopped, 5, 27);
}

// as large as before, and 10 s younger
static void edit(const char *path) {
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    const struct timespec times[2] = {info.st_atim, {info.st_mtim.tv_sec + 10, 0}};
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
}

static void cut_short(const char *path) { assert_int_equal(truncate(path, 11), 0); }
static void remove_file(const char *path) { assert_int_equal(unlink(path), 0); }

// a text, which stays open, or the third of four shards, which is not open yet
typedef struct {
    bool shards;
    int read;  // batches before the change
    void (*change)(const char *path);
    const char *words;
} Change;

static void stop_at_change(void *argument) {
    const Change *c = (const Change *)argument;
    write_file("open.txt", "0123456789abcdefgh", 18);
    TokenFiles files = c->shards ? open_four_shards() : open_files("open.txt");
    DataLoader loader;
    if (c->read == 0) { c->change(files.files[c->shards ? 2 : 0].path); }
    open_plain(&loader, &files, 1, FOUR_T);
    for (int i = 0; i < 6; i++) {
        dataloader_next(&loader);
        if (i + 1 == c->read) { c->change(files.files[0].path); }
    }
}

TEST(test_files_that_change) {
    Change cases[] = {{false, 0, cut_short, "open.txt was written after the run began"},
                      {false, 2, edit, "open.txt was written after the run began"},
                      {true, 0, edit, "four_c.bin was written after the run began"},
                      {true, 0, remove_file, "four_c.bin could not be opened: No such file"}};
    for (size_t i = 0; i < LEN(cases); i++) {
        assert_stops(EXIT_RUN_FAILED, cases[i].words, stop_at_change, &cases[i]);
    }
}

// ---- order

TEST(test_plain_order) {
    write_file("order_1.txt", "abcdefg", 7);  // abc cde efg
    write_file("order_2.txt", "hi", 2);       // too short
    write_file("order_3.txt", "jklmno", 6);   // jkl lmn
    TokenFiles files = open_files("order_*.txt");
    DataLoader loader;
    open_plain(&loader, &files, 2, 2);
    assert_int_equal(loader.sequences_per_epoch, 5);
    assert_int_equal(dataloader_batches(&loader), 3);
    static const char *const batches[] = {"abcdbcde", "efjkfgkl", "lm  mn  ", "        "};  // ' ': no target
    for (int i = 0; i < 4; i++) {
        assert_int_equal(loader.position, 2 * i);
        dataloader_next(&loader);
        for (int t = 0; t < 4; t++) {
            bool blank = batches[i][t] == ' ';
            assert_int_equal(loader.inputs[t], blank ? 0 : batches[i][t]);
            assert_int_equal(loader.targets[t], blank ? -1 : batches[i][4 + t]);
        }
    }
    close_all(&loader, &files);
}

TEST(test_length_one) {
    write_file("ab.txt", "ab", 2);
    TokenFiles files = open_files("ab.txt");
    DataLoader loader;
    open_plain(&loader, &files, 3, 1);  // more sequences a batch than there are
    assert_int_equal(loader.sequences_per_epoch, 1);
    dataloader_next(&loader);
    assert_ids(loader.inputs, (int[]){'a', 0, 0}, 3);
    assert_ids(loader.targets, (int[]){'b', -1, -1}, 3);
    assert_int_equal(loader.position, 3);
    close_all(&loader, &files);
}

// first ids of the sequences s .. s + n - 1, read one by one; each is checked to be whole and to come from one file
static void read_firsts(int *firsts, const TokenFiles *files, uint64_t seed, uint64_t s, int n) {
    DataLoader loader;
    dataloader_open(&loader, files, 1, FOUR_T, true, seed, 0, 1, 65536);
    dataloader_seek(&loader, s);
    for (int i = 0; i < n; i++) {
        dataloader_next(&loader);
        firsts[i] = loader.inputs[0];
        for (int t = 0; t < FOUR_T; t++) {
            assert_int_equal(loader.inputs[t], firsts[i] + t);
            assert_int_equal(loader.targets[t], firsts[i] + t + 1);
        }
    }
    dataloader_close(&loader);
}

TEST(test_shuffled_epochs) {
    TokenFiles files = open_four_shards();
    int orders[4][FOUR_SEQUENCES];
    for (int epoch = 0; epoch < 3; epoch++) {
        read_firsts(orders[epoch], &files, 1, (uint64_t)epoch * FOUR_SEQUENCES, FOUR_SEQUENCES);
    }
    read_firsts(orders[3], &files, 2, 0, FOUR_SEQUENCES);
    for (int o = 0; o < 4; o++) {
        bool seen[MAX_TOKENS] = {false};
        int changes_of_file = 0;
        for (int i = 0; i < FOUR_SEQUENCES; i++) {
            int first = orders[o][i], sequences[4] = {5, 0, 2, 8};
            assert_int_equal(first % 1000 % FOUR_T, 0);
            assert_true(first % 1000 / FOUR_T < sequences[first / 1000]);
            assert_false(seen[first]);
            seen[first] = true;
            changes_of_file += i > 0 && first / 1000 != orders[o][i - 1] / 1000;
        }
        assert_int_equal(changes_of_file, 2);
        for (int other = 0; other < o; other++) { assert_memory_not_equal(orders[o], orders[other], sizeof orders[o]); }
    }
    token_files_close(&files);
}

// over many epochs every file is first once, and so is every sequence of a file
TEST(test_shuffle_moves_files_and_sequences) {
    TokenFiles files = open_four_shards();
    bool file_first[4] = {false}, sequence_first[8] = {false};
    for (uint64_t epoch = 0; epoch < 100; epoch++) {
        int firsts[FOUR_SEQUENCES], i = 0;
        read_firsts(firsts, &files, 3, epoch * FOUR_SEQUENCES, FOUR_SEQUENCES);
        file_first[firsts[0] / 1000] = true;
        while (firsts[i] < 3000) { i++; }
        sequence_first[(firsts[i] - 3000) / FOUR_T] = true;
    }
    assert_true(file_first[0] && file_first[2] && file_first[3]);
    for (int j = 0; j < 8; j++) { assert_true(sequence_first[j]); }
    token_files_close(&files);
}

// R ranks of B sequences read together the batches of one rank of RB, over more than one epoch
TEST(test_ranks) {
    TokenFiles files = open_four_shards();
    static const int splits[][2] = {{2, 2}, {4, 1}, {1, 4}, {20, 3}};
    for (size_t i = 0; i < LEN(splits); i++) {
        int R = splits[i][0], B = splits[i][1], n = B * FOUR_T;
        DataLoader all, one[20];
        dataloader_open(&all, &files, R * B, FOUR_T, true, 9, 0, 1, 65536);
        for (int r = 0; r < R; r++) { dataloader_open(&one[r], &files, B, FOUR_T, true, 9, r, R, 65536); }
        for (int batch = 0; batch < 10; batch++) {
            dataloader_next(&all);
            for (int r = 0; r < R; r++) {
                dataloader_next(&one[r]);
                assert_ids(one[r].inputs, all.inputs + r * n, n);
                assert_ids(one[r].targets, all.targets + r * n, n);
                assert_int_equal(one[r].position, all.position);
            }
        }
        for (int r = 0; r < R; r++) { dataloader_close(&one[r]); }
        dataloader_close(&all);
    }
    token_files_close(&files);
}

// A loader continues from the position of another as that loader does: rank 1 of 2, 6 sequences a batch, 15 an epoch.
TEST(test_seek) {
    TokenFiles files = open_four_shards();
    enum { BATCHES = 8, B = 3, N = B * FOUR_T };
    for (int stop = 0; stop < BATCHES; stop++) {
        DataLoader whole, resumed;
        dataloader_open(&whole, &files, B, FOUR_T, true, 5, 1, 2, 65536);
        dataloader_open(&resumed, &files, B, FOUR_T, true, 5, 1, 2, 65536);
        for (int i = 0; i < stop; i++) { dataloader_next(&whole); }
        assert_int_equal(whole.position, 2 * B * stop);  // batches read ahead do not count
        if (stop % 2) { dataloader_next(&resumed); }     // fresh, or used
        dataloader_seek(&resumed, whole.position);
        assert_int_equal(resumed.position, 2 * B * stop);
        for (int i = stop; i < BATCHES; i++) {
            dataloader_next(&whole);
            dataloader_next(&resumed);
            assert_ids(resumed.inputs, whole.inputs, N);
            assert_ids(resumed.targets, whole.targets, N);
        }
        dataloader_close(&whole);
        dataloader_close(&resumed);
    }
    token_files_close(&files);
}

// the current batch does not change while the next one is read, nor by a seek
TEST(test_batch_stays) {
    TokenFiles files = open_four_shards();
    DataLoader loader;
    open_plain(&loader, &files, 1, FOUR_T);
    dataloader_next(&loader);
    dataloader_seek(&loader, 4);
    dataloader_seek(&loader, 2);  // waits until 4 is read
    assert_ids(loader.inputs, (int[]){0, 1, 2, 3}, 4);
    assert_ids(loader.targets, (int[]){1, 2, 3, 4}, 4);
    dataloader_next(&loader);
    assert_ids(loader.inputs, (int[]){8, 9, 10, 11}, 4);
    close_all(&loader, &files);
}

static int lowest_free_descriptor(void) {
    int fd = open("/dev/null", O_RDONLY);
    close(fd);
    return fd;
}

TEST(test_descriptors_are_closed) {
    int before = lowest_free_descriptor();
    TokenFiles files = open_four_shards();
    DataLoader loader;
    open_plain(&loader, &files, 10, FOUR_T);
    for (int i = 0; i < 4; i++) { dataloader_next(&loader); }
    close_all(&loader, &files);
    assert_int_equal(lowest_free_descriptor(), before);
}

// ---- short texts and splits

static void stop_at_short(void *files) {
    DataLoader loader;
    open_plain(&loader, (const TokenFiles *)files, 1, 8);
}

TEST(test_short_text) {
    write_file("short_1.txt", "1234567", 7);
    write_file("short_2.txt", "12345678", 8);
    TokenFiles files = open_files("short_*.txt"), train, val;
    assert_stops(EXIT_BAD_INPUT, "takes 9 tokens, but the longest file,", stop_at_short, &files);
    assert_stops(EXIT_BAD_INPUT, "short_2.txt, has 8;", stop_at_short, &files);
    token_files_split(&files, 0.5, &train, &val);
    assert_stops(EXIT_BAD_INPUT, "has 4 to train on", stop_at_short, &train);
    assert_stops(EXIT_BAD_INPUT, "has 4 held out for validation", stop_at_short, &val);
    token_files_close(&train);
    token_files_close(&val);
    token_files_close(&files);
    write_file("just.txt", "123456789", 9);
    files = open_files("just.txt");
    DataLoader loader;
    open_plain(&loader, &files, 1, 8);
    dataloader_next(&loader);
    assert_int_equal(loader.targets[7], '9');
    close_all(&loader, &files);
}

// the loaders of train and val have no token of each other, targets included
TEST(test_split_loaders) {
    write_counting_shard("part_a.bin", 0, 100);
    write_counting_shard("part_b.bin", 100, 50);
    write_counting_shard("part_c.bin", 150, 5);  // of which a tenth is nothing
    TokenFiles files = open_files("part_*.bin"), parts[2];
    token_files_split(&files, 0.1, &parts[0], &parts[1]);
    static const uint64_t sequences[2] = {89 + 44 + 4, 9 + 4 + 0};
    bool seen[2][155] = {{false}};
    for (int p = 0; p < 2; p++) {
        DataLoader loader;
        dataloader_open(&loader, &parts[p], 1, 1, true, 0, 0, 1, 65536);
        token_files_close(&parts[p]);
        assert_int_equal(loader.sequences_per_epoch, sequences[p]);
        while (loader.position < sequences[p]) {
            dataloader_next(&loader);
            seen[p][loader.inputs[0]] = seen[p][loader.targets[0]] = true;
        }
        dataloader_close(&loader);
    }
    for (int id = 0; id < 155; id++) {
        bool held_out = (id >= 90 && id < 100) || (id >= 145 && id < 150);
        assert_int_equal(seen[0][id], !held_out);
        assert_int_equal(seen[1][id], held_out);
    }
    token_files_close(&files);
}

// ---- fingerprints

static uint64_t fingerprint_named(const char *pattern, bool named) {
    TokenFiles files = open_files(pattern);
    uint64_t fingerprint = token_files_fingerprint(&files, named);
    token_files_close(&files);
    return fingerprint;
}

static uint64_t fingerprint_of(const char *pattern) { return fingerprint_named(pattern, false); }

// NAME with LENGTH bytes of one pattern, in which the byte AT is CHANGED; its fingerprint
static uint64_t fingerprint_with(const char *name, size_t length, size_t at, char changed) {
    static char text[3 * 65536];
    for (size_t i = 0; i < length; i++) { text[i] = (char)('a' + i * i % 23); }
    text[at] = changed;
    write_file(name, text, length);
    return fingerprint_of(name);
}

TEST(test_fingerprint) {
    // in a checkpoint, it must not change with the machine or the version
    write_file("print_1.txt", "to be", 5);
    write_file("print_2.txt", "or not to be", 12);
    assert_true(fingerprint_named("print_?.txt", true) == UINT64_C(0xD3F2CCBA6F448FD4));
    assert_true(fingerprint_of("print_?.txt") == UINT64_C(0xDBB5DA9CA7EFD877));
    // of the content at the start, in the middle and at the end, and of the length
    enum { LENGTH = 50001, PIECE = 4096, MIDDLE = (LENGTH - PIECE) / 2 };
    const uint64_t plain = fingerprint_with("print.txt", LENGTH, 0, 'a');
    assert_true(plain == fingerprint_with("print.txt", LENGTH, 0, 'a'));
    static const size_t seen[] = {0, PIECE - 1, MIDDLE, MIDDLE + PIECE - 1, LENGTH - PIECE, LENGTH - 1};
    for (size_t i = 0; i < LEN(seen); i++) {
        assert_true(plain != fingerprint_with("print.txt", LENGTH, seen[i], 'Z'));
    }
    assert_true(plain != fingerprint_with("print.txt", LENGTH + 1, 0, 'a'));
    for (size_t at = 0; at < 5; at++) {  // shorter than a piece
        assert_true(fingerprint_with("print.txt", 5, at, 'Z') != fingerprint_with("print.txt", 5, at, 'Y'));
    }
    // of no names, or of names without their folder
    new_folder("elsewhere");
    const uint64_t here = fingerprint_with("moved.txt", 9000, 1, 'Z');
    assert_true(here == fingerprint_with("elsewhere/moved.txt", 9000, 1, 'Z'));
    assert_true(here == fingerprint_with("renamed.txt", 9000, 1, 'Z'));
    assert_true(fingerprint_named("moved.txt", true) == fingerprint_named("elsewhere/moved.txt", true));
    assert_true(fingerprint_named("moved.txt", true) != fingerprint_named("renamed.txt", true));
    write_file("elsewhere/none.txt", "more", 4);
    assert_true(here != fingerprint_of("elsewhere/*.txt"));
}

TEST(test_fingerprint_is_of_the_part) {
    TokenFiles files = open_four_shards(), train, val, less, rest;
    token_files_split(&files, 0.2, &train, &val);
    token_files_split(&files, 0.5, &less, &rest);
    const TokenFiles *parts[] = {&files, &train, &val, &less, &rest};
    for (int i = 0; i < 5; i++) {
        for (int j = 0; j < 5; j++) {
            uint64_t a = token_files_fingerprint(parts[i], false), b = token_files_fingerprint(parts[j], false);
            assert_int_equal(a == b, i == j);
        }
    }
    // the same number of tokens, from another offset
    uint64_t before = token_files_fingerprint(&rest, false);
    rest.files[0].first_token--;
    assert_true(before != token_files_fingerprint(&rest, false));
    for (int i = 4; i >= 0; i--) { token_files_close((TokenFiles *)parts[i]); }
}

static void stop_at_print_of_removed(void *unused) {
    (void)unused;
    TokenFiles files = open_four_shards();
    unlink(temp_path("four_c.bin"));
    token_files_fingerprint(&files, false);
}

TEST(test_fingerprint_of_what_is_gone) {
    assert_stops(EXIT_BAD_INPUT, "four_c.bin: No such file", stop_at_print_of_removed, NULL);
}

// ---- a file of 5 GiB

// more than 2^31 tokens and more than 2^32 bytes; the last sequence ends with the file
#define LARGE_TOKENS (((uint64_t)2560 << 20) + 1)
enum { LARGE_T = 8 };

// Writes one id at TOKEN of the shard at PATH, and leaves the time of its last change.
static void put_id(const char *path, uint64_t token, uint16_t id) {
    int fd = open(path, O_WRONLY);
    struct stat info;
    assert_int_equal(fstat(fd, &info), 0);
    const struct timespec times[2] = {info.st_atim, info.st_mtim};
    assert_int_equal(pwrite(fd, &id, sizeof id, (off_t)(1024 + 2 * token)), sizeof id);
    assert_int_equal(futimens(fd, times), 0);
    assert_int_equal(close(fd), 0);
}

TEST(test_large_file) {
    const uint64_t last = LARGE_TOKENS - 1 - LARGE_T;  // the first token of the last sequence
    uint16_t none = 0;
    const char *path = write_shard("large.bin", &none, 0);
    FILE *file = fopen(path, "r+b");
    uint32_t header[3] = {TOKEN_MAGIC, TOKEN_VERSION, (uint32_t)LARGE_TOKENS};
    assert_int_equal(fwrite(header, sizeof header, 1, file), 1);
    assert_int_equal(fclose(file), 0);
    if (truncate(path, 1024 + 2 * (off_t)LARGE_TOKENS) != 0) {
        unlink(path);
        skip();  // no sparse files here
    }
    for (uint64_t i = 0; i <= LARGE_T; i++) { put_id(path, last + i, (uint16_t)(100 + i)); }

    TokenFiles files = open_files("large.bin");
    DataLoader loader;
    open_plain(&loader, &files, 1, LARGE_T);
    assert_int_equal(loader.sequences_per_epoch, (LARGE_TOKENS - 1) / LARGE_T);
    dataloader_seek(&loader, loader.sequences_per_epoch - 1);
    dataloader_next(&loader);
    assert_ids(loader.inputs, (int[]){100, 101, 102, 103, 104, 105, 106, 107}, LARGE_T);
    assert_ids(loader.targets, (int[]){101, 102, 103, 104, 105, 106, 107, 108}, LARGE_T);
    dataloader_close(&loader);

    uint64_t print = token_files_fingerprint(&files, false);
    put_id(path, LARGE_TOKENS / 2, 300);
    assert_true(print != token_files_fingerprint(&files, false));
    token_files_close(&files);
    unlink(path);
}

int main(void) { return run_all_tests("dataloader"); }

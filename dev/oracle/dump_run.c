/*
Writes the input of a run, for another trainer to repeat it: the initial weights, and every training and validation
batch in order.
    dump_run FOLDER [flags of train_gpt2]
    FOLDER/step_00000000/model.safetensors   Hugging Face's names
    FOLDER/train.i32                         int32 [steps][B][T+1]
    FOLDER/val.i32                           int32 [batches][B][T+1]
A row is the T inputs and the last target of a sequence.
*/
#define WITHOUT_MAIN
#include "train_gpt2.cu"
#include "dev/test/run_open.h"

// appends a micro-batch: the inputs of each row and the token after them
static void dump_batch(FILE *out, const DataLoader *loader, int B, int T) {
    for (int b = 0; b < B; b++) {
        const int *inputs = loader->inputs + (size_t)b * T, *last = loader->targets + (size_t)(b + 1) * T - 1;
        fwrite(inputs, sizeof(int), (size_t)T, out);
        fwrite(last, sizeof(int), 1, out);
    }
}

static void dump_batches(const char *folder, const char *name, DataLoader *loader, long long batches,
                         const TrainArgs *a) {
    char path[PATH_LENGTH];
    format_path(path, "%s/%s", folder, name);
    FILE *out = fopen(path, "wb");
    if (!out) { run_error("could not write '%s': %s", path, strerror(errno)); }
    dataloader_seek(loader, 0);
    for (long long i = 0; i < batches; i++) {
        dataloader_next(loader);
        dump_batch(out, loader, a->B, a->T);
    }
    if (fclose(out) != 0) { run_error("could not write '%s': %s", path, strerror(errno)); }
}

int main(int argc, char **argv) {
    if (argc < 2) { input_error("dump_run takes a folder and then the flags of train_gpt2"); }
    TrainArgs args = default_args;
    flags_parse(flag_table, NUM_FLAGS, &args, argc - 1, argv + 1);
    require_consistent_flags(&args);
    make_run_dir(argv[1]);
    Run run;
    Comm *host = comm_single(&cpu_device);
    run_open(&run, &args, host);
    ModelState model = gpt2_state(&run.model);
    cJSON *state = run_state(&run);
    uint32_t crcs[2];
    checkpoint_save(argv[1], "step_00000000", &model, state, true, crcs);
    cJSON_Delete(state);
    dump_batches(argv[1], "train.i32", &run.data.train_loader, run.max_steps * accumulation_steps(run.args), &args);
    dump_batches(argv[1], "val.i32", &run.data.val_loader, args.val_batches, &args);
    run_close(&run);
    comm_close(host);
    return 0;
}

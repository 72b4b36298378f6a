/*
Flags of other trainers, and the flags that do their job here: the answer to an unknown flag.
defines: OtherName, other_names
*/
#pragma once

typedef struct {
    const char *names;   // of PyTorch's examples, nanoGPT, Megatron-LM, llm.c and transformers, with - for _
    const char *answer;  // follows "unknown flag --NAME; "
} OtherName;

// clang-format off
static const OtherName other_names[] = {
    {"batch-size bs device-batch-size per-device-batch-size per-device-train-batch-size micro-batch-size",
     "here it is -b N (--micro-batch), the sequences of a micro-batch"},
    {"global-batch-size total-batch-size grad-accum grad-accum-steps gradient-accumulation-steps accumulation-steps",
     "here it is -d N (--batch-tokens), the tokens of an update: b x t x ranks x accumulation steps"},
    {"block-size seq-len seq-length max-seq-len max-seq-length context context-length n-ctx",
     "here it is -t N (--sequence-length)"},
    {"lr max-lr", "here it is -l X (--learning-rate)"},
    {"min-lr lr-min", "here it is -q X (--final-fraction), a fraction of -l"},
    {"lr-scheduler lr-scheduler-type lr-decay-style scheduler", "here it is -k NAME (--schedule)"},
    {"warmup-steps warmup-iters lr-warmup-steps lr-warmup-iters", "here it is -u N (--warmup), in steps"},
    {"steps max-iters iters num-steps train-iters train-steps num-iterations", "here it is -x N (--max-steps)"},
    {"epochs epoch num-epochs max-epochs num-train-epochs",
     "here -x N (--max-steps) counts updates, and -x -1, the default, is one epoch"},
    {"wd", "here it is -c X (--weight-decay)"},
    {"clip clip-grad max-grad-norm max-norm gradient-clip-val", "here it is --grad-clip X"},
    {"adam-beta1 adam-beta2 adam-eps adam-epsilon", "here they are --beta1 X, --beta2 X and --epsilon X"},
    {"dropout attention-dropout hidden-dropout attn-pdrop resid-pdrop", "this trainer has no dropout: leave it out"},
    {"out out-dir output-dir save save-dir", "here it is -o DIR (--output)"},
    {"data dataset data-dir data-path train-file train-bin input-bin", "here it is -i GLOB (--train-data)"},
    {"n-layer n-head n-embd n-layers num-layers n-heads num-heads num-attention-heads hidden-size d-model",
     "here -e (--model) has the shape: -e d12, or -e l12h12c768"},
    {"init-from model-name model-name-or-path load pretrained checkpoint", "here it is -e DIR (--model)"},
    {"resume-from resume-from-checkpoint", "here it is -y 1 (--resume) with -o DIR"},
    {"eval-interval eval-every eval-steps val-interval", "here it is -v N (--val-every)"},
    {"eval-iters val-iters", "here it is -m N (--val-batches)"},
    {"save-interval save-every save-steps checkpoint-interval", "here it is -n N (--checkpoint-every)"},
    {"max-new-tokens max-tokens num-tokens n-predict", "here it is --generate N"},
    {"dtype bf16 fp16 amp precision mixed-precision",
     "the type is chosen when building, make PRECISION=bf16, and -f N (--matmul-precision) rounds matmul inputs"},
    {"gpus num-gpus n-gpus nproc-per-node nproc num-processes", "one rank for each GPU starts with mpirun -np N"},
    {"compile num-workers dataloader-num-workers flash-attn use-flash-attn", "nothing here needs it: leave it out"},
    {"wandb wandb-project wandb-log wandb-run-name report-to tensorboard tensorboard-dir",
     "scripts/follow.py sends the metrics of -o to Weights & Biases or TensorBoard"},
};
// clang-format on

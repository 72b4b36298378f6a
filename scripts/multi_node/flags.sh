# shellcheck shell=bash disable=SC2034,SC2001  # the other scripts use the variables; bash 5.2 replaces & in ${DATA//}
# The run that mpirun.sh and slurm.sbatch start: GPT-2 1558M on 2 machines of 8 GPUs. DATA names the folder of
# the token shards.
#
# tokens     32,000 steps of 1,048,576: 33.6 billion, 3.3e20 FLOPs (scripts/run_gpt2_1558M.sh has the arithmetic)
# hours      12.7 at 450 TFLOP/s a GPU: a step is 4 micro-steps of 16 x 1024 tokens on each, 1.43 s
# sent       -z 1: a step reduce-scatters 1558M gradients in fp32 (four micro-steps are summed) and all-gathers 1558M
#            parameters in bf16. Each GPU sends 15/16 of both: 8.8 GB, 0.18 s through a 400 Gb/s card, hidden behind
#            the last micro-step's backward and the next forward
# memory     38.2 GiB a GPU. -z 1: 16 bytes of state a parameter become 6 + 10 / 16, 9.6 GiB; activations take 28.3.
#            With the bf16 build: `./train_gpt2 --plan -pn 16 -z 1 -e d48 -b 16 -d 1048576 -s 0`
data=$(sed 's/[][*?\\]/\\&/g' <<<"${DATA:-data/edu_fineweb100B}") # the folder's own name is no pattern
flags=(-i "$data/*_train_*.bin" -j "$data/*_val_*.bin" -o runs/gpt2_1558M_nodes -y 1
    -e d48 -b 16 -t 1024 -d 1048576 -x 32000 -z 1 -l 6e-4 -k cosine -u 700 -q 0.1 -c 0.1 -n 2000 -nk 2
    -v 250 -m 20 -s 0)

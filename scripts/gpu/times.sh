# shellcheck shell=bash disable=SC2154,SC2034  # the parts of gpu_check.sh share variables
# scripts/gpu_check.sh: how long each row takes. This table alone decides which rows still fit.
#   expected   seconds on 16 cores and a Hopper GPU. A row starts if as many seconds are left
#   limit      seconds after which the row is stopped
#   start      `beside`: the row runs in the background, beside the rows below it
# The steps of train_gpt2 are predicted: 113 ms at 124M, 328 ms at 1558M (`make predict`, an H200). A start of either
# program takes 5 to 20 s, and the first step 10 to 20 s more to choose algorithms. PyTorch compiles 124M in 60 s, 1558M
# in 120 s.
# A row's name ends at the first colon: "-r at 124M: -r 3" has the time of "-r at 124M".

declare -A seconds_of=([first]=330 [speed]=570 [rest]=570 [build]=570) expected=() limit=()
times_table='
# first
PyTorch compiles                 200 600 beside
build                             60 150
memcheck                          70 240 beside
test_simt                          5  20
test_ops                          15  60
self-check                        30  60
124M without CUDA graphs          20  60
124M with CUDA graphs             10  60

# speed
PyTorch compiles 124M             80 200 beside
build                             60 150
train 124M                        30  90
PyTorch 124M                      50 130
same bits twice                   30  80
train 1558M                       55 140
PyTorch 1558M                     95 200
PyTorch 1558M, not compiled      225 330
matmuls of 124M                   10  40
matmuls of 1558M                  15  40
bench_ops                         90 130
again, train 124M                 15  60
again, PyTorch 124M               40 100

# rest
build                             60 150
test_gpt2_bf16                    60 150 beside
test_gpt2_fp32                    60 150 beside
test_ops_fp32                     40 120 beside
test_ops at 124M                 110 200 beside
test_nccl                         15  60 beside
test_layouts                       5  30 beside
two ranks                         20  60 beside
racecheck                        150 220 beside
synccheck                         90 200 beside
initcheck                         90 200 beside
memcheck of the trainer           40 120 beside
weights and batches               45 120
PyTorch curve                    110 230 beside
our curve                         65 150
resumed curve                     40 120
-r at 124M                        13  60
a batch too large                  3  30
largest batch of 124M             40  90
largest batch of 1558M            55 100
--fit of 124M                     30  60
largest batch of PyTorch          75 100
'
while read -r line; do
    [[ $line =~ ^(.*[^ ])\ +([0-9]+)\ +([0-9]+)(\ beside)?$ ]] || continue
    expected[${BASH_REMATCH[1]}]=${BASH_REMATCH[2]} limit[${BASH_REMATCH[1]}]=${BASH_REMATCH[3]}
done <<<"$times_table"

# the command `build` compiles on any machine, without a limit that matters
[ "$stage" != build ] || limit[build]=7200 seconds_of[build]=7200

list_times() {
    local command
    for command in first speed rest; do
        echo "$command, ${seconds_of[$command]} s: row, expected seconds, limit"
        awk -v heading="# $command" '/^(#|$)/ { on = $0 == heading; next } on' <<<"$times_table"
        echo
    done
}

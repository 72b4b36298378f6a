#!/usr/bin/env bash
# A run directory of someone else's: links in it lead elsewhere, and its files name other paths. Nothing outside of it
# is written or deleted. And the modes of all files that the program writes, under a umask of 0.
. "$(dirname "$0")/harness.sh"

root=$PWD trainer=$(realpath "${TRAIN_GPT2:-./train_gpt2}")
in_scratch
err=$out
export OMP_NUM_THREADS=1 HOME=$scratch/home
mkdir "$HOME"
head -c 8192 "$root/README.md" >my.txt
tiny=(-i my.txt -e l1h1c8 -b 1 -t 8 -v 0 -s 0)

# victim [RUN]: a folder outside of the run with files of the user. Removes the run, or trains RUN to its first step
victim() {
    rm -rf victim run && mkdir victim
    echo precious >victim/file
    echo '{"step":1}' >victim/other.json
    (cd victim && snapshot) >sums
    [ $# -eq 0 ] || run 0 "${tiny[@]}" -o "$1" -n 1 -x 1
}
unharmed() { (cd victim && snapshot) | diff sums -; }

# ---- links

report "an unfinished checkpoint that is a link" "$(
    victim
    mkdir run && ln -s ../victim run/step_00000007.tmp && ln -s "$PWD/victim" run/best.tmp
    run 0 "${tiny[@]}" -o run -n 1 -x 1
    unharmed
    [ ! -L run/step_00000007.tmp ] || echo "the link is still there"
)"
report "a pruned checkpoint that is a link" "$(
    rm -rf run
    run 0 "${tiny[@]}" -o run -n 1 -x 2
    mv run/step_00000001 moved && ln -s ../moved run/step_00000001
    (cd moved && snapshot) >before
    run 0 -o run -y 1 -x 4 -nk 1
    (cd moved && snapshot) | diff before -
    [ ! -e run/step_00000001 ] || echo "the checkpoint was not pruned"
)"
report "files of a run that are links" "$(
    victim run
    for name in config.json metrics.jsonl main.log profile.json; do
        for ending in .part .new .tmp; do ln -s ../victim/file "run/$name$ending"; done
    done
    ln -s ../victim/new run/profile.json
    run 0 -o run -y 1 -x 6 --profile 1
    unharmed
)"
report "logs of a run that are links" "$(
    victim
    mkdir run
    ln -s ../victim/new run/metrics.jsonl # a file to come
    run 2 "${tiny[@]}" -o run -x 1 # a run does not begin in a folder that holds a log
    unharmed
    rm run/metrics.jsonl && run 0 "${tiny[@]}" -o run -x 1
    sed -i 's/"checkpoint-every":.*/"checkpoint-every": 9,/' run/config.json # as if killed before the save
    ln -sf ../victim/file run/metrics.jsonl
    ln -sf ../victim/other.json run/main.log
    run 0 -o run -y 1 -n 0 # there is no checkpoint: from the beginning
    unharmed
    [ -s run/metrics.jsonl ] && [ ! -L run/metrics.jsonl ] || echo "the run has no metrics.jsonl of its own"
    rm -r run && run 0 "${tiny[@]}" -o run -x 1 -n 1
    ln -sf ../victim/new run/metrics.jsonl
    run 1 -o run -y 1 -x 3
    unharmed
)"
report "RUN/best leads elsewhere: no file is written or deleted there" "$(
    victim run
    ln -s ../victim run/best
    run 0 -o run -y 1 -v 1 -m 1 -x 3 --keep-best
    unharmed
    [ ! -L run/best ] && [ -e run/best/state.json ] || echo "RUN/best is not a checkpoint"
)"
report "a run to read" "$(run 0 "${tiny[@]}" -o other -n 1 -x 1)"
report "token shards and an exported file" "$(
    victim
    cp "$root/dev/test/golden/gpt2_2500.bpe" vocab.bpe
    for name in s_train_000001.bin s_val_000000.bin s_merges.txt; do
        ln -s victim/new "$name.part" # of files to come
    done
    ln -s victim/file x.gguf.part
    run 0 -i my.txt --tokenizer vocab.bpe --tokenize s
    run 0 --export gguf -e other -o x.gguf
    unharmed
    [ -s s_train_000001.bin ] && [ ! -L s_train_000001.bin ] || echo "there is no shard"
)"

# ---- paths in files

report "the output folder and the folder of the ranks in config.json are not used" "$(
    victim run
    sed -i 's|"output":[^,]*|"output": "victim"|; s|"shared-folder":[^,]*|"shared-folder": "victim/file"|' \
        run/config.json
    [ "$(grep -c '"victim[a-z/]*",*$' run/config.json)" -eq 2 ] || echo "config.json has not changed: no test"
    run 0 -o run -y 1 -x 2
    unharmed
    ! grep -v '^note ' "$out" | grep victim || echo "a path of config.json is a flag of the run"
    [ -d run/step_00000002 ] || echo "run/step_00000002 is missing"
)"
report "an index whose files are outside of its folder" "$(
    for name in ../other/step_00000001/model.safetensors "$PWD/other/step_00000001/model.safetensors" .. . ''; do
        rm -rf hub && mkdir hub
        cp other/step_00000001/config.json hub/
        printf '{"weight_map":{"wte.weight":"%s"}}\n' "$name" >hub/model.safetensors.index.json
        run 2 --generate 1 -e hub
        [[ $name == . ]] || [[ $(cat "$out") == *"expected a file in the folder of the index"* ]] || cat "$out"
    done
)"
report "a model in the cache of Hugging Face, whose files are links" "$(
    rm -rf hub && mkdir -p hub/blobs hub/snapshots/main
    cp other/step_00000001/{config.json,model.safetensors} hub/blobs/
    for name in config.json model.safetensors; do ln -s ../../blobs/$name hub/snapshots/main/$name; done
    run 0 --generate 1 -e hub/snapshots/main
)"

# ---- modes

report "under a umask of 0, nobody else may write to a file or a folder" "$(
    umask 0
    mkdir -m 755 written && cd written || exit
    here=(-i ../my.txt -e l1h1c8 -b 1 -t 8 -s 0)
    run 0 "${here[@]}" -v 1 -m 1 -n 1 -x 3 --profile 1 --keep-best -o deep/run
    run 0 -o deep/run -y 1 -x 4
    run 0 "${here[@]}" -v 2 -m 1 -x 2 --keep-best -o best
    run 0 -i ../my.txt --tokenizer ../vocab.bpe --tokenize shard
    run 0 -i ../my.txt --train-bpe 300 -o learned.txt
    run 0 --export gguf -e deep/run -o model.gguf
    run 0 --export llmc -e deep/run -o model.bin
    [ "$(find . -type f | wc -l)" -gt 30 ] || echo "expected more than 30 files: $(find . -type f)"
    find . "$HOME" ! -type l -perm /022 -printf '%p has mode %m\n'
    find . ! -type l ! -perm -044 -printf '%p has mode %m: others cannot read it\n'
)"
report "a umask of 077 holds" "$(
    umask 077
    run 0 "${tiny[@]}" -n 1 -x 1 -o private
    find private -perm /077 -printf '%p has mode %m\n'
)"

end_tests

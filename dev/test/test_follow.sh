#!/usr/bin/env bash
# scripts/follow.py: scalars, steps and times in TensorBoard and Weights & Biases; half lines, resumed and new runs,
# following again, the ends, errors. Modules of this script stand for the two packages. The packages themselves are
# tested where a Python has them.
#   PYTHON=build/py/bin/python3 dev/test/test_follow.sh
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
. dev/test/harness.sh

export PYTHONDONTWRITEBYTECODE=1
here=$(mktemp -d)
out=$here/out followers=()
# a failed case may leave a follow.py behind
trap 'for follower in "${followers[@]}"; do kill -9 "$follower" 2>/dev/null; done; rm -rf "$here"' EXIT
metrics=$here/run/metrics.jsonl

# ---- modules in place of the packages: each call is a line of $STUB_LOG, or of the event file

export STUB_LOG=$here/calls
mkdir -p "$here"/stub/tensorboard/{compat/proto,plugins/hparams,summary/writer}
cat >"$here/stub/wandb.py" <<'END'
import json, os
def call(*words):
    with open(os.environ["STUB_LOG"], "a") as file:
        file.write(json.dumps(words) + "\n")
class Run:
    def __init__(self, id):
        self.id, self.step, self.last = id, int(os.environ.get("STUB_STEP", 0)), -1
    def log(self, values, step):
        if step < max(self.step, self.last):
            raise ValueError(f"step {step} after {self.last}")
        self.last = step
        call(step, values)
    def finish(self):
        call("finish")
def init(project, name, id, resume, dir, config):
    if "STUB_FAILS" in os.environ:
        raise RuntimeError("no\nnetwork")
    call("init", project, name, id, resume, config)
    return Run(id)
END
cat >"$here/stub/tensorboard/compat/proto/event_pb2.py" <<'END'
class SessionLog:
    START = 1
    def __init__(self, status):
        self.text = "start"
class Event:
    def __init__(self, step, wall_time=0, summary=None, session_log=None):
        self.words = [step, wall_time, (summary or session_log).text]
END
cat >"$here/stub/tensorboard/compat/proto/summary_pb2.py" <<'END'
class Summary:
    class Value:
        def __init__(self, tag, simple_value):
            self.pair = tag, simple_value
    def __init__(self, value):
        self.text = dict(item.pair for item in value)
END
cat >"$here/stub/tensorboard/plugins/hparams/summary_v2.py" <<'END'
class hparams_pb:
    def __init__(self, flags):
        self.text = {"flags": flags}
END
cat >"$here/stub/tensorboard/summary/writer/event_file_writer.py" <<'END'
import itertools, json, os
numbers = itertools.count()
class EventFileWriter:
    def __init__(self, folder, filename_suffix):
        os.makedirs(folder, exist_ok=True)
        name = f"events.out.tfevents.{os.getpid()}.{next(numbers)}{filename_suffix}"
        self.file = open(os.path.join(folder, name), "w")
    def add_event(self, event):
        self.file.write(json.dumps(event.words) + "\n")
    def flush(self):
        self.file.flush()
    def close(self):
        self.file.close()
END

# ---- helpers

# follow ARGUMENT...: follow.py with the modules above, to its end
follow() { PYTHONPATH=$here/stub python3 scripts/follow.py "$here/run" "$@" >"$out" 2>&1 || echo "status $?"; }
# start ARGUMENT...: the same in the background; its process is $follower
start() {
    : >"$out"
    PYTHONPATH=$here/stub python3 scripts/follow.py "$here/run" --every 0.02 "$@" >"$out" 2>&1 &
    follower=$!
    followers+=("$follower")
}
# appears TEXT PATH: silent once a file that begins with PATH has the text
appears() {
    local i
    for ((i = 0; i < 600; i++)); do
        cat "$2"* 2>/dev/null | grep -qF -- "$1" && return
        sleep 0.05
    done
    echo "no '$1' in $(basename "$2") after 30 s"
}
# finish NAME TROUBLE COMMAND...: reports TROUBLE, the status of follow.py, and the output of COMMAND after its end
finish() {
    wait "$follower"
    local status=$?
    report "$1" "$2$([ $status = 0 ] || echo "status $status")$("${@:3}")"
}
# has EXPECTED: compares the points of TensorBoard's event file
has() { same "$1" "$(points "$events"*)"; }
# same EXPECTED FOUND
same() { [ "$1" = "$2" ] || printf 'expected:\n%s\nfound:\n%s\n' "$1" "$2"; }
# step N LOSS: a training line of 500 ms
step() { printf '{"step":%d,"loss":%s,"ms":500}\n' "$1" "$2"; }
# points FILE...: step and loss of each point of an event file, or of W&B's calls
points() { sed -nE 's/^\[([0-9]+),.*"train\/loss": ([0-9.]+).*/\1 \2/p' "$@"; }
new_run() {
    rm -rf "$here/run" "$here/tb" "$STUB_LOG"
    mkdir "$here/run"
    echo '{"model":"d12","val-data":null,"threads":2,"learning-rate":0.5}' >"$here/run/config.json"
}
events=$here/tb/run/events.out.tfevents

# ---- TensorBoard

new_run
cat >"$metrics" <<'END'
{"step":0,"val_loss":5.5}
{"step":1,"loss":5,"grad_norm":3,"ms":500,"mfu":0.5,"note":"warm","ok":true}
{"step":2,"loss":null,"grad_norm":2,"ms":250,"mfu":0.25}
{"step":2,"val_loss":4.25,"bits_per_byte":1.5}
{"step":2,"hellaswag":0.25}
END
printf '{"step":3,"lo' >>"$metrics"
touch -d @1000000 "$metrics"
report "TensorBoard: scalars at their steps, times, null as NaN, flags, no half line" "$(
    follow --tensorboard "$here/tb" --once
    same '[0, 0, "start"]
[0, 0, {"flags": {"model": "d12", "val-data": "null", "threads": 2, "learning-rate": 0.5}}]
[0, 999999.25, {"val/loss": 5.5}]
[1, 999999.75, {"train/loss": 5, "train/grad_norm": 3, "train/ms": 500, "train/mfu": 0.5}]
[2, 1000000.0, {"train/loss": NaN, "train/grad_norm": 2, "train/ms": 250, "train/mfu": 0.25, "val/loss": 4.25, '"\
"'"val/bits_per_byte": 1.5, "val/hellaswag": 0.25}]' "$(cat "$events"*)"
    same "follow.py: $metrics is sent up to step 2" "$(cat "$out")"
)"
report "TensorBoard again: every point once; the event files of others stay" "$(
    echo '[8, 0, {"train/loss": 2}]' | tee "$events.other" >"$events.follow-00000000"
    follow --tensorboard "$here/tb" --once
    same $'1 5\n8 2\n8 2' "$(points "$events"* | sort)"
)"

new_run
rm -r "$here/run"
start --tensorboard "$here/tb"
report "following: a run that does not exist yet, lines in two halves, the last step held back" "$(
    appears "waiting for $metrics" "$out"
    mkdir "$here/run"
    { step 1 9 && step 2 8 && printf '{"step":3,'; } >"$metrics"
    appears '"train/loss": 9' "$events"
    printf '"loss":7,"ms":500}\n' >>"$metrics"
    appears '"train/loss": 8' "$events"
    same $'1 9\n2 8' "$(points "$events"*)"
)"
trouble=$(
    { step 1 9 && step 2 6; } >"$here/resumed"
    mv "$here/resumed" "$metrics"
    step 3 5 >>"$metrics"
    appears '"train/loss": 6' "$events"
    kill "$follower"
)
finish "following: a resumed run's file replaces the points; SIGTERM sends the last step" "$trouble" \
    has $'1 9\n2 6\n3 5'

new_run
step 1 9 >"$metrics"
start --tensorboard "$here/tb"
trouble=$(
    step 2 8 >>"$metrics"
    appears '"train/loss": 9' "$events"
    { step 1 4 && step 2 3 && step 3 2 && step 4 1; } >"$metrics"
    appears '"train/loss": 2' "$events"
    kill "$follower"
)
finish "following: a new run empties the file and is longer at once" "$trouble" has $'1 4\n2 3\n3 2\n4 1'

new_run
step 1 9 >"$metrics"
tail -f /dev/null &
process=$!
followers+=("$process")
start --tensorboard "$here/tb" --pid $process
step 2 8 >>"$metrics"
trouble=$(
    appears '"train/loss": 9' "$events"
    kill -0 "$follower" 2>/dev/null || echo "follow.py ended before the process"
    step 3 7 >>"$metrics"
)
{ kill $process && wait $process; } 2>/dev/null
finish "--pid: follow.py waits for the process, then ends with the last step" "$trouble" has $'1 9\n2 8\n3 7'

# ---- Weights & Biases

new_run
{ step 1 9 && step 2 8 && step 3 7; } >"$metrics"
id() { sed -nE 's/^\["init", "p", "run", "(run-[0-9a-f]{8})", "allow", .*/\1/p' "$STUB_LOG"; }
report "W&B: project, name, id, flags, scalars" "$(
    follow --wandb p --once
    same '["init", "p", "run", "'"$(id)"'", "allow", {"model": "d12", "val-data": null, "threads": 2, '"\
"'"learning-rate": 0.5}]
[1, {"train/loss": 9, "train/ms": 500}]
[2, {"train/loss": 8, "train/ms": 500}]
[3, {"train/loss": 7, "train/ms": 500}]
["finish"]' "$(cat "$STUB_LOG")"
)"
report "W&B again: the same run, and no step twice" "$(
    step 4 6 >>"$metrics"
    follow --wandb p --once
    same 1 "$(id | sort -u | wc -l)"
    same $'1 9\n2 8\n3 7\n4 6' "$(points "$STUB_LOG")"
)"
report "W&B again without the state file: the server's step counts" "$(
    mv "$here/run/wandb" "$here/wandb"
    step 5 5 >>"$metrics"
    STUB_STEP=5 follow --wandb p --once
    same $'1 9\n2 8\n3 7\n4 6\n5 5' "$(points "$STUB_LOG")"
)"
rm "$STUB_LOG"
start --wandb p
report "following a resumed run: steps that were sent are skipped" "$(
    { step 6 4 && step 7 3; } >>"$metrics"
    appears '[6, {' "$STUB_LOG"
    { step 1 9 && step 2 8 && step 3 70 && step 4 60 && step 5 50; } >"$here/resumed"
    mv "$here/resumed" "$metrics"
    { step 6 40 && step 7 30 && step 8 20; } >>"$metrics"
    appears '[7, {' "$STUB_LOG"
    same $'6 4\n7 30' "$(points "$STUB_LOG")"
)"
own_run() {
    same 2 "$(id | sort -u | wc -l)"
    same $'1 3\n2 2' "$(points "$STUB_LOG" | tail -n 2)"
}
trouble=$(
    : >"$metrics"
    echo '{"step":0,"val_loss":5}' >>"$metrics"
    { step 1 3 && step 2 2; } >>"$metrics"
    appears '"train/loss": 3' "$STUB_LOG"
    kill "$follower"
)
finish "following a new run in the same folder: a run of its own" "$trouble" own_run

# ---- errors

# stops STATUS WORDS ARGUMENT...: follow.py ends with the status and one sentence with these words
stops() {
    report "an error: $2" "$(
        PYTHONPATH=${modules:-$here/stub} timeout 60 python3 scripts/follow.py "${@:3}" >"$out" 2>&1
        found=$?
        [ $found = "$1" ] || echo "status $found, expected $1"
        grep -q -- "^follow.py: .*$2" "$out" || echo "expected '$2'"
        [ "$(wc -l <"$out")" = 1 ] || echo "$(wc -l <"$out") lines, expected one"
    )"
}
stops 2 "nowhere/metrics.jsonl does not exist; give a run directory" "$here/nowhere" --wandb p --once
stops 2 "one of the arguments --tensorboard --wandb is required" "$here/run"
stops 2 "not allowed with argument" "$here/run" --wandb p --tensorboard "$here/tb"
stops 2 "argument --every: expected seconds above 0, found '0'" "$here/run" --wandb p --every 0
stops 2 "required: run" --wandb p
STUB_FAILS=1 stops 1 "did not begin the run: no network; try .wandb login." "$here/run" --wandb p --once
touch "$here/file"
stops 1 "could not write $here/file" "$here/run" --tensorboard "$here/file" --once
echo '{"step":2' >>"$metrics"
stops 2 "metrics.jsonl has the line '{\"step\":2', which is not" "$here/run" --tensorboard "$here/tb" --once
mkdir "$here/without"
echo 'raise ImportError("absent")' | tee "$here/without/wandb.py" >"$here/without/tensorboard.py"
modules=$here/without
stops 2 "could not import wandb (absent); run: .* -m pip install wandb" "$here/run" --wandb p --once
stops 2 "could not import tensorboard (absent); run: .* -m pip install tensorboard" "$here/run" --tensorboard x --once

# ---- the packages themselves

python=${PYTHON:-build/py/bin/python3}
finished_run() {
    new_run
    { step 1 9 && step 2 8 && step 3 7 && echo '{"step":3,"val_loss":6}'; } >"$metrics"
}
finished_run
if "$python" -c 'import tensorboard' 2>/dev/null; then
    report "TensorBoard's own reader: the points, also when it is open while follow.py writes the file again" "$(
        "$python" - "$here" 2>"$out" <<'END' || echo "status $?"
import subprocess, sys, time
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
here = sys.argv[1]
def follow():
    subprocess.run([sys.executable, "scripts/follow.py", here + "/run", "--tensorboard", here + "/tb", "--once"],
                   check=True, stdout=subprocess.DEVNULL)
def expect(tag, expected):
    reader.Reload()
    found = [(point.step, point.value) for point in reader.Scalars(tag)]
    if found != expected:
        print(f"{tag}: found {found}, expected {expected}")
follow()
reader = EventAccumulator(here + "/tb/run")
expect("train/loss", [(1, 9), (2, 8), (3, 7)])
expect("val/loss", [(3, 6)])
if "_hparams_/session_start_info" not in reader.summary_metadata:
    print("no hyper-parameters")
with open(here + "/run/metrics.jsonl", "w") as file:
    file.write('{"step":1,"loss":9,"ms":5}\n{"step":2,"loss":5,"ms":5}\n')
time.sleep(1.1)  # a reader opens files by name, and the names hold the second
follow()
expect("train/loss", [(1, 9), (2, 5)])
END
    )"
else
    echo "$python has no tensorboard: the package itself is not tested"
    echo "[  SKIPPED ] 1 test(s)."
fi
finished_run
if "$python" -c 'import wandb' 2>/dev/null; then
    report "wandb's own files without a network" "$(
        unset STUB_LOG
        for _ in once again; do
            WANDB_MODE=offline WANDB_SILENT=true WANDB_CACHE_DIR=$here WANDB_CONFIG_DIR=$here WANDB_DATA_DIR=$here \
                "$python" scripts/follow.py "$here/run" --wandb p --once >"$out" 2>&1 || echo "status $?"
        done
        cat "$here"/run/wandb/offline-run-*/run-*.wandb >"$here/logged"
        for text in train/loss val/loss learning-rate; do
            grep -qaF $text "$here/logged" || echo "no $text in wandb's file"
        done
        same '{"step": 3}' "$(cat "$here"/run/wandb/run-*.sent)"
    )"
else
    echo "$python has no wandb: the package itself is not tested"
    echo "[  SKIPPED ] 1 test(s)."
fi
end_tests

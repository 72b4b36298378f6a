#!/usr/bin/env bash
# scripts/follow.py: scalars in TensorBoard and Weights & Biases; half lines, resumed and new runs, following again,
# signals, errors. Modules of this script stand for the two packages: each point is a line [step, scalars, ...] of the
# event file or of $calls.
. "$(dirname "$0")/harness.sh"

program=$PWD/scripts/follow.py
in_scratch
calls=$PWD/calls metrics=run/metrics.jsonl events=tb/run/events.out.tfevents
mkdir stub without
echo 'raise ImportError("absent")' >without/wandb.py
export PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$PWD/stub
cat >stub/wandb.py <<END
import json, os
def call(*words):
    print(json.dumps(words), file=open("$calls", "a"))
class Run:
    def __init__(self, id):
        sent = [json.loads(line) for line in open("$calls")]
        self.id, self.step = id, 1 + max((words[0] for words in sent if words[2:] == [id]), default=-1)
    def log(self, values, step):
        call(step, values, self.id)
    def finish(self):
        call("finish")
def init(project, name, id, resume, dir, config):
    if "STUB_FAILS" in os.environ:
        raise RuntimeError("no\nnetwork")
    call("init", project, name, resume, config)
    return Run(id)
END
cat >stub/tensorboard.py <<'END'
import io, json, os, sys, time
event_pb2 = summary_pb2 = sys.modules[__name__]
for name in ("compat", "compat.proto", "plugins", "plugins.hparams", "plugins.hparams.summary_v2", "summary",
             "summary.writer", "summary.writer.event_file_writer"):
    sys.modules["tensorboard." + name] = sys.modules[__name__]
def SessionLog(status): return status
SessionLog.START = "start"
def Event(step, wall_time, summary=None, session_log=None): return [step, summary or session_log, wall_time]
def Summary(value): return dict(value)
Summary.Value = lambda tag, simple_value: (tag, simple_value)
def hparams_pb(flags): return {"flags": flags}
class EventFileWriter(io.FileIO):
    def __init__(self, folder, flush_secs, filename_suffix):
        os.makedirs(folder, exist_ok=True)
        super().__init__(f"{folder}/events.out.tfevents.{time.time_ns()}{filename_suffix}", "w")
    def add_event(self, event):
        self.write(json.dumps(event).encode() + b"\n")
END

follow() { "$program" "$@" >"$out" 2>&1; }
# follows NAME EXPECTED PATH ARGUMENT...: runs `change` beside follow.py, then compares the points
follows() {
    local trouble
    "$program" run "${@:4}" >"$out" 2>&1 &
    follower=$!
    trouble=$(change)
    wait "$follower" || trouble+=" follow.py's status $?"
    report "$1" "$trouble$(points "$2" "$3")"
}
# points EXPECTED PATH: compares step:loss of the training points in the files that begin with PATH
points() { equal "$(cat "$2"* | sed -nE 's/^\[([0-9]+),.*"train\/loss": ([0-9.]+).*/\1:\2/p' | xargs)" "$1"; }
# appears TEXT PATH: silent once a file that begins with PATH has the text
appears() {
    for _ in {1..3000}; do
        cat "$2"* 2>/dev/null | grep -F -- "$1" >/dev/null && return
        sleep 0.1
    done
    echo "no '$1' in $(basename "$2")"
}
# steps STEP:LOSS...: lines of training steps
steps() { printf '%s\n' "$@" | sed -E 's/(.*):(.*)/{"step":\1,"loss":\2,"ms":500}/'; }
new_run() {
    rm -rf run tb
    mkdir run
    : >"$calls"
    echo '{"model":"d12","val-data":null,"threads":2}' >run/config.json
}

# ---- TensorBoard

new_run
cat >$metrics <<'END'
{"step":0,"val_loss":5.5}
{"step":1,"loss":5,"grad_norm":3,"ms":500,"note":"warm","ok":true}
{"step":2,"loss":null,"ms":250}
{"step":2,"val_loss":4.25,"bits_per_byte":1.5,"hellaswag":0.25}
END
printf '{"step":3,"lo' >>$metrics
report "TensorBoard: scalars at their steps, null as NaN, flags, no half line, times" "$(
    follow run --tensorboard tb --once || echo "status $?"
    equal "$(sed -E 's/, [0-9.]+\]$/]/' $events*)" '[0, "start"]
[0, {"flags": {"model": "d12", "val-data": "null", "threads": 2}}]
[0, {"val/loss": 5.5}]
[1, {"train/loss": 5, "train/grad_norm": 3, "train/ms": 500}]
[2, {"train/loss": NaN, "train/ms": 250}]
[2, {"val/loss": 4.25, "val/bits_per_byte": 1.5, "val/hellaswag": 0.25}]'
    equal "$(sed -E 's/.*, (.*)\]$/\1/' $events* | awk 'NR == 1 { t = $1 } END { printf "%.2f", $1 - t }')" 0.75
)"
report "TensorBoard again: every point once; the earlier file and those of others stay, for an open TensorBoard" "$(
    echo '[8, {"train/loss": 2}]' | tee $events.z >$events.z.follow-00000000
    follow run --tensorboard tb --once || echo "status $?"
    points "1:5 8:2 8:2" $events
    equal "$(find tb/run -type f | wc -l) files" "4 files"
)"
new_run
rm -r run
change() {
    appears "waiting for $metrics" "$out"
    mkdir run
    { steps 1:9 2:8 && printf '{"step":3,'; } >$metrics
    appears '"train/loss": 8' $events
    printf '"loss":7,"ms":500}\n' >>$metrics
    appears '"train/loss": 7' $events
    points "1:9 2:8 3:7" $events
    steps 1:9 2:6 3:5 4:4 >$metrics
    appears '"train/loss": 4' $events
    kill -INT "$follower"
}
follows "RUN comes later, half a line waits, a resumed run, Ctrl-C" "1:9 2:6 3:5 4:4" $events --tensorboard tb

# ---- Weights & Biases

new_run
{ echo '{"step":0,"val_loss":5}' && steps 1:9 2:8; } >$metrics
follow run --wandb p --once
change() {
    says "$calls" '["init", "p", "run", "allow", {"model": "d12", "val-data": null, "threads": 2}]'
    says "$calls" '[2, {"train/loss": 8, "train/ms": 500}, "run-'
    says "$calls" '["finish"]'
    steps 3:7 4:6 >>$metrics
    appears "[4, {" "$calls"
    steps 1:9 2:80 3:70 4:60 5:5 >$metrics
    appears "[5, {" "$calls"
    echo '{"step":0,"val_loss":5}' >$metrics
    for _ in {1..3000}; do # until the run before has ended, in two parts, after that of --once
        [ "$(grep -c finish "$calls")" -lt 3 ] || break
        sleep 0.1
    done
    steps 1:3 >>$metrics
    appears '"train/loss": 3' "$calls"
    steps 2:2 >>$metrics
    kill -TERM "$follower"
}
sent="1:9 2:8 3:7 4:6 5:5 1:3 2:2"
follows "W&B: flags, scalars; again, a resumed run, a new run: no step twice; the last lines at SIGTERM" "$sent" \
    "$calls" --wandb p
report "W&B: the new run has an id of its own, which stays" "$(
    follow run --wandb p --once || echo "status $?"
    points "$sent" "$calls"
    equal "$(grep -oE 'run-[0-9a-f]{8}' "$calls" | sort -u | wc -l) runs" "2 runs"
)"

# ---- errors

# stops STATUS WORDS ARGUMENT...: follow.py ends with the status, and with a sentence that has these words
stops() {
    report "an error: $2" "$(
        follow "${@:3}"
        equal $? "$1"
        grep -q -- "^follow.py: .*$2" "$out" || echo "expected '$2'"
    )"
}
STUB_FAILS=1 stops 1 "did not begin the run: no network; try .wandb login." run --wandb p --once
echo '{"step":3' >>$metrics
stops 2 "line 4 of $metrics is not a JSON object with a step" run --tensorboard tb --once
export PYTHONPATH=$PWD/without
stops 2 "could not import wandb (absent); run: .* -m pip install wandb" run --wandb p
end_tests

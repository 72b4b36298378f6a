#!/usr/bin/env python3
"""Sends a run's metrics to TensorBoard or to Weights & Biases while the trainer writes them.

  scripts/follow.py RUN --tensorboard DIR    writes DIR/NAME; `tensorboard --logdir DIR` shows the run
  scripts/follow.py RUN --wandb PROJECT      sends the run NAME to a project of Weights & Biases

RUN is a run directory, the folder after -o of train_gpt2; NAME is the folder's name. RUN may not exist yet. Each number
in metrics.jsonl becomes a scalar at its step: val/loss, val/bits_per_byte, val/hellaswag, and train/X for any other
field X. null becomes NaN. The flags in config.json become the hyper-parameters.

  --once       sends the lines of the file and ends
  --pid PID    ends after the process PID has ended: ./train_gpt2 ... & scripts/follow.py RUN --wandb P --pid $!
  --every S    seconds between two looks at the file (default 2)

Ctrl-C and SIGTERM end follow.py too. A step is sent once a later one starts, because an evaluation adds lines to it.
The last step is sent at the end.

Starting follow.py again sends no point twice:
- TensorBoard: follow.py empties the earlier event files of the run and writes all points to a new file. A resumed
  trainer deletes the lines after its checkpoint; follow.py then starts a new event file, too.
- Weights & Biases cannot delete points. RUN/wandb/ID.sent holds the last step sent, and steps up to there are
  skipped. A resumed run repeats the skipped steps bit for bit if the flags are the same. ID is NAME and a hash of the
  first training step, so that a new run in an old folder has an ID of its own.
The time of a point is the time of the file's last change, less the milliseconds of the later steps.
"""
import argparse
import glob
import hashlib
import json
import os
import re
import signal
import sys
import threading

sys.dont_write_bytecode = True  # no __pycache__ among the scripts
from run_metrics import parse_line, read_json, run_name, stop  # noqa: E402


def scalar_name(field):
    """loss: train/loss; val_loss: val/loss; bits_per_byte: val/bits_per_byte"""
    if field == "val_loss":
        return "val/loss"
    return ("val/" if field in ("hellaswag", "bits_per_byte") else "train/") + field


def scalars(fields):
    return {scalar_name(field): float("nan") if value is None else value for field, value in fields.items()}


# ---- the file

class Tail:
    """Reads a growing metrics.jsonl. The trainer may replace the file, or empty it and write it again."""

    def __init__(self, path):
        self.path = path
        self.forget()

    def forget(self):
        self.file, self.offset, self.before = None, 0, b""  # before: the last bytes read, to recognise the file

    def read(self):
        """(rewritten, [(step, fields, time)]): whether earlier lines may have changed, and the new whole lines"""
        try:
            with open(self.path, "rb") as file:
                status = os.fstat(file.fileno())
                rewritten = self.offset > 0 and not self.continues(file, status)
                if rewritten:
                    self.forget()
                file.seek(self.offset)
                text = file.read()
        except FileNotFoundError:
            return False, []
        except OSError as error:
            stop(f"could not read {self.path} ({error.strerror}); make the file readable", 1)
        text = text[:text.rfind(b"\n") + 1]  # half a line is read again later
        self.file = status.st_dev, status.st_ino
        self.offset += len(text)
        self.before = (self.before + text)[-256:]
        return rewritten, self.parse(text.splitlines(), status.st_mtime)

    def continues(self, file, status):
        """Whether the file still holds the last bytes that were read, at the same place."""
        file.seek(self.offset - len(self.before))
        return self.file == (status.st_dev, status.st_ino) and file.read(len(self.before)) == self.before

    def parse(self, lines, changed):
        parsed = []
        for line in reversed(lines):
            try:
                step, fields = parse_line(line)
            except ValueError:
                text = line.decode(errors="replace")[:60]
                stop(f"{self.path} has the line '{text}', which is not a JSON object with a step; delete the line")
            parsed.append((step, fields, changed))
            changed -= (fields.get("ms") or 0) / 1000
        return parsed[::-1]


def run_id(folder):
    """NAME and a hash of the first training step, whose "ms" differs from run to run"""
    with open(os.path.join(folder, "metrics.jsonl"), "rb") as file:
        lines = file.read().splitlines()
    first = next((line for line in lines if b'"ms"' in line), (lines or [b""])[0])
    return re.sub(r"[^A-Za-z0-9_.-]", "-", run_name(folder)) + "-" + hashlib.sha1(first).hexdigest()[:8]


# ---- TensorBoard

class TensorBoard:
    def __init__(self, folder, target):
        try:
            from tensorboard.compat.proto import event_pb2, summary_pb2
            from tensorboard.plugins.hparams import summary_v2
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError as error:
            missing("tensorboard", error)
        self.proto, self.summary, self.hparams, self.make_writer = event_pb2, summary_pb2, summary_v2, EventFileWriter
        self.folder, self.target, self.writer = folder, os.path.join(target, run_name(folder)), None
        # the file of another run with the same name is not this program's to delete
        self.suffix = ".follow-" + hashlib.sha1(os.path.realpath(folder).encode()).hexdigest()[:8]

    def begin(self):
        """A new event file. START tells an open TensorBoard to forget the steps from 0 on. The earlier files are
        emptied and stay, because an open TensorBoard finds the next file only from a file that exists."""
        self.end()
        for path in glob.glob(os.path.join(glob.escape(self.target), "events.out.tfevents.*" + self.suffix)):
            os.truncate(path, 0)
        self.writer = self.make_writer(self.target, filename_suffix=self.suffix)
        start = self.proto.SessionLog(status=self.proto.SessionLog.START)
        self.writer.add_event(self.proto.Event(step=0, session_log=start))
        flags = {name: value if isinstance(value, (bool, int, float, str)) else json.dumps(value)
                 for name, value in read_json(os.path.join(self.folder, "config.json")).items()}
        if flags:
            self.writer.add_event(self.proto.Event(step=0, summary=self.hparams.hparams_pb(flags)))

    rewritten = begin

    def send(self, step, fields, time):
        values = [self.summary.Summary.Value(tag=tag, simple_value=value) for tag, value in scalars(fields).items()]
        self.writer.add_event(self.proto.Event(wall_time=time, step=step, summary=self.summary.Summary(value=values)))

    def flush(self):
        self.writer.flush()

    def end(self):
        if self.writer:
            self.writer.close()


# ---- Weights & Biases

class Wandb:
    def __init__(self, folder, target):
        try:
            import wandb
        except ImportError as error:
            missing("wandb", error)
        self.wandb, self.folder, self.project, self.run, self.doubtful = wandb, folder, target, None, False

    def begin(self):
        name = run_id(self.folder)
        self.state = os.path.join(self.folder, "wandb", name + ".sent")
        os.makedirs(os.path.dirname(self.state), exist_ok=True)
        try:
            self.run = self.wandb.init(project=self.project, name=run_name(self.folder), id=name, resume="allow",
                                       dir=self.folder, config=read_json(os.path.join(self.folder, "config.json")))
        except Exception as error:  # wandb has no common class for what a network or an account can do
            stop(f"Weights & Biases did not begin the run: {' '.join(str(error).split())}; try `wandb login`, or set "
                 "WANDB_MODE=offline", 1)
        # a resumed run's `step` is the step after the last one sent; 0 for a new run and without a network
        self.sent = max(read_json(self.state).get("step", -1), (self.run.step or 0) - 1)

    def rewritten(self):
        """Has `send` compare the ID, which is known once the new file has a training step."""
        self.doubtful = True

    def send(self, step, fields, _):
        if self.doubtful and run_id(self.folder) != self.run.id:  # a new run in the same folder
            self.end()
            self.begin()
        self.doubtful = False
        if step > self.sent:
            self.run.log(scalars(fields), step=step)
            self.sent = step

    def flush(self):
        with open(self.state + ".new", "w", encoding="utf-8") as file:
            json.dump({"step": self.sent}, file)
        os.replace(self.state + ".new", self.state)

    def end(self):
        if self.run:
            self.run.finish()


# ---- following

def missing(package, error):
    stop(f"{sys.executable} could not import {package} ({error}); run: {sys.executable} -m pip install {package}")


def has_ended(process):
    """Whether the process has ended. State Z: its parent has not collected the status yet."""
    try:
        with open(f"/proc/{process}/status", encoding="utf-8") as file:
            return "\nState:\tZ" in file.read()
    except OSError:
        return True


def ended_by_signal():
    """An event that the first SIGINT or SIGTERM sets. The second ends the program at once."""
    ended = threading.Event()

    def end(number, _):
        signal.signal(number, signal.SIG_DFL)
        ended.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) != signal.SIG_IGN:  # a shell's background process ignores SIGINT
            signal.signal(number, end)
    return ended


class Sender:
    """Joins the lines of a step, and sends the step when a later one begins."""

    def __init__(self, log):
        self.log, self.begun, self.step, self.fields, self.time = log, False, None, {}, 0

    def take(self, rewritten, lines):
        if rewritten:
            self.step, self.fields, self.time = None, {}, 0
            if self.begun:
                self.log.rewritten()
        for step, fields, time in lines:
            if step != self.step:
                self.send()
                self.step, self.fields = step, {}
            self.fields.update(fields)
            self.time = max(self.time, time)
        if self.begun and lines:
            self.log.flush()

    def send(self):
        if not self.fields:
            return
        if not self.begun:
            self.begun = True
            self.log.begin()
        self.log.send(self.step, self.fields, self.time)

    def end(self):
        self.send()
        if self.begun:
            self.log.flush()
            self.log.end()


def follow(arguments, log):
    path = os.path.join(arguments.run, "metrics.jsonl")
    ended = ended_by_signal()
    tail, sender = Tail(path), Sender(log)
    if not os.path.exists(path):
        if arguments.once:
            stop(f"{path} does not exist; give a run directory, the folder after -o of train_gpt2")
        print(f"follow.py: waiting for {path}", flush=True)
    while True:
        last = arguments.once or ended.is_set() or arguments.pid and has_ended(arguments.pid)
        sender.take(*tail.read())
        if last:
            break
        ended.wait(arguments.every)
    sender.end()
    print(f"follow.py: {path} is sent up to step {sender.step}" if sender.begun else f"follow.py: {path} has no step")


class Parser(argparse.ArgumentParser):
    def error(self, message):
        stop(f"{message}; see scripts/follow.py --help")


def seconds(text):
    try:
        if 0 < float(text) < float("inf"):
            return float(text)
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"expected seconds above 0, found '{text}'")


def main():
    if sys.argv[1:2] in (["-h"], ["--help"]):
        print(__doc__.strip())
        return
    parser = Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("run")
    target = parser.add_mutually_exclusive_group(required=True)
    target.add_argument("--tensorboard", metavar="DIR")
    target.add_argument("--wandb", metavar="PROJECT")
    parser.add_argument("--once", action="store_true")
    parser.add_argument("--pid", type=int)
    parser.add_argument("--every", type=seconds, default=2)
    arguments = parser.parse_args()
    kind, name = (TensorBoard, arguments.tensorboard) if arguments.tensorboard else (Wandb, arguments.wandb)
    log = kind(arguments.run, name)
    try:
        follow(arguments, log)
    except OSError as error:
        stop(f"could not write {error.filename}: {error.strerror}; make the folder writable", 1)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Sends a run's metrics to TensorBoard or to Weights & Biases while the trainer writes them.

  scripts/follow.py RUN --tensorboard DIR    writes DIR/NAME; `tensorboard --logdir DIR` shows the run
  scripts/follow.py RUN --wandb PROJECT      sends the run NAME to a project of Weights & Biases

RUN is a run directory, the folder after -o of train_gpt2; NAME is the folder's name. RUN may not exist yet. Each number
in metrics.jsonl becomes a scalar at its step: val/loss, val/bits_per_byte, val/hellaswag, and train/X for any other
field X. null becomes NaN. The flags in config.json become the hyper-parameters.

Ctrl-C or SIGTERM ends follow.py, after the last lines: start it with & before the trainer, and `kill $!` afterwards. No
point is sent twice if follow.py starts again, or if the trainer resumes: it deletes the lines after its checkpoint and
repeats their steps. TensorBoard: a new event file gets all points, and the earlier ones are emptied. Weights & Biases
cannot delete points: the steps that it has are skipped. With WANDB_MODE=offline they are not known, and all points go
to a new folder.
"""
import argparse
import glob
import json
import os
import re
import signal
import sys
import threading
import time
import zlib

sys.dont_write_bytecode = True  # no __pycache__ among the scripts
from plot import parse_lines, read_flags, read_whole_lines, run_name, stop  # noqa: E402


def scalars(fields):
    names = {"val_loss": "val/loss", "bits_per_byte": "val/bits_per_byte", "hellaswag": "val/hellaswag"}
    return {names.get(field, "train/" + field): float("nan") if value is None else value
            for field, value in fields.items()}


# A target is made for the lines that metrics.jsonl begins with, (step, {field: number or None}); then `send` takes each
# of them, and each later one. A rewritten file has a new target.

class TensorBoard:
    def __init__(self, run, directory, lines):
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
        self.Event, self.Summary = event_pb2.Event, summary_pb2.Summary
        folder = os.path.join(directory, run_name(run))
        # the files of another run with the same name stay
        suffix = f".follow-{zlib.crc32(os.path.realpath(run).encode()):08x}"
        for path in glob.glob(os.path.join(glob.escape(folder), "events.out.tfevents.*" + suffix)):
            os.truncate(path, 0)  # not removed: an open TensorBoard would not find the next file
        self.writer = EventFileWriter(folder, flush_secs=1, filename_suffix=suffix)
        self.time = time.time() - sum(fields.get("ms") or 0 for _, fields in lines) / 1000
        # START tells an open TensorBoard to forget the steps from 0 on
        self.add(0, session_log=event_pb2.SessionLog(status=event_pb2.SessionLog.START))
        flags = {name: value if isinstance(value, (bool, int, float, str)) else json.dumps(value)
                 for name, value in read_flags(run).items()}
        if flags:
            self.add(0, summary=hparams_pb(flags))

    def add(self, step, **content):
        self.writer.add_event(self.Event(step=step, wall_time=self.time, **content))

    def send(self, step, fields):
        self.time += (fields.get("ms") or 0) / 1000  # "Relative" in TensorBoard is the time of the training steps
        self.add(step, summary=self.Summary(value=[self.Summary.Value(tag=tag, simple_value=value)
                                                   for tag, value in scalars(fields).items()]))

    def end(self):
        self.writer.flush()  # reports a full disk, which close does not
        self.writer.close()


class Wandb:
    def __init__(self, run, project, lines):
        import wandb
        # the milliseconds of the first training step tell a new run in an old folder from a resumed one
        first = next((line for line in lines if "ms" in line[1]), lines[0])
        name = re.sub(r"[^A-Za-z0-9_.-]", "-", run_name(run)) + f"-{zlib.crc32(repr(first).encode()):08x}"
        try:
            self.run = wandb.init(project=project, name=run_name(run), id=name, resume="allow", dir=run,
                                  config=read_flags(run))
        except Exception as error:  # wandb has no common class for what a network or an account can do
            stop(f"Weights & Biases did not begin the run: {' '.join(str(error).split())}; try `wandb login`, or set "
                 "WANDB_MODE=offline", 1)
        self.next, self.end = self.run.step, self.run.finish  # next: the step after the last one that it has

    def send(self, step, fields):
        if step >= self.next:
            self.run.log(scalars(fields), step=step)  # joins the lines of a step


def follow(path, once, make_target):
    """Sends the lines of the file, and looks for new ones twice a second until a signal."""
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    if not once and not os.path.exists(path):
        print(f"follow.py: waiting for {path}", flush=True)
    target, sent, last = None, "", False
    while not last:
        last = once or ended.wait(0.5)
        text = read_whole_lines(path) if once or os.path.exists(path) else ""
        if target and not text.startswith(sent):  # the trainer resumed or began anew
            target.end()
            target, sent = None, ""
        if target or last or '"ms"' in text:  # Wandb looks for a training step
            lines = parse_lines(path, text[len(sent):], sent.count("\n"))
            target = target or (make_target(lines) if lines else None)
            for line in lines:
                target.send(*line)
            sent = text
    if target:
        target.end()
    print(f"follow.py: {path} is sent" if target else f"follow.py: {path} has no step")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", metavar="RUN", help="a run directory")
    targets = parser.add_mutually_exclusive_group(required=True)
    targets.add_argument("--tensorboard", metavar="DIR", help="folder of the event files")
    targets.add_argument("--wandb", metavar="PROJECT", help="project of Weights & Biases")
    parser.add_argument("--once", action="store_true", help="send the lines of the file, and end")
    given = parser.parse_args()
    kind, package, place = (Wandb, "wandb", given.wandb) if given.wandb else (
        TensorBoard, "tensorboard", given.tensorboard)
    try:
        __import__(package)
        follow(os.path.join(given.run, "metrics.jsonl"), given.once, lambda lines: kind(given.run, place, lines))
    except ImportError as error:
        stop(f"{sys.executable} could not import {package} ({error}); run: {sys.executable} -m pip install {package}")
    except OSError as error:
        stop(f"could not write {error.filename or place}: {error.strerror}; make the folder writable, or make room", 1)


if __name__ == "__main__":
    main()

"""Reads the run directories of train_gpt2 for plot.py and follow.py: metrics.jsonl, the flags, the model's shape.

metrics.jsonl has one JSON object a line, with a step and numbers. A step may have several lines: training, validation,
HellaSwag. null stands for NaN or infinity. A killed run may leave half a line at the end.
"""
import argparse
import glob
import json
import math
import os
import re
import sys

# layers and channels of the models that -e names, for a run without a checkpoint (llmc/shapes/params.h)
SHAPES = {"d12": (12, 768), "d24": (24, 1024), "d36": (36, 1280), "d48": (48, 1600), "gpt3:c768": (12, 768),
          "gpt3:c1024": (24, 1024), "gpt3:c1536": (24, 1536), "gpt3:c2048": (24, 2048)}


def stop(sentence, status=2):
    """Ends the program. Status 2: wrong usage or input. Status 1: failure while running."""
    print(f"{os.path.basename(sys.argv[0])}: {sentence}", file=sys.stderr)
    sys.exit(status)


class Parser(argparse.ArgumentParser):
    """Prints a script's documentation for -h, and one sentence for a mistake."""

    def format_help(self):
        return sys.modules["__main__"].__doc__.strip() + "\n"

    def error(self, message):
        stop(f"{message}; see {sys.argv[0]} --help")


def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def read_whole_lines(path):
    """The text of metrics.jsonl up to its last newline. After that is half a line, still being written."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read()
    except OSError as error:
        stop(f"could not read {path} ({error.strerror}); give a run directory, the folder after -o of train_gpt2")
    return text[:text.rfind("\n") + 1]


def parse_lines(path, text, earlier=0):
    """[(step, {field: number or None})] of a text from metrics.jsonl, after `earlier` lines of the file. None is
    null, NaN or infinity. Fields that are not numbers are left out."""
    parsed = []
    for number, line in enumerate(text.split("\n"), earlier + 1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
        except ValueError:
            found = None
        if not isinstance(found, dict) or not isinstance(found.get("step"), int):
            stop(f"line {number} of {path} is not a JSON object with a step; delete the line")
        fields = {name: value if value is not None and math.isfinite(value) else None
                  for name, value in found.items() if name != "step" and (value is None or is_number(value))}
        parsed.append((found["step"], fields))
    return parsed


def read_steps(path):
    """{step: {field: number or None}} in the order of steps. Of two values for a field of a step, the later counts."""
    steps = {}
    for step, fields in parse_lines(path, read_whole_lines(path)):
        steps.setdefault(step, {}).update(fields)
    return dict(sorted(steps.items()))


def read_json(path):
    """The JSON object in a file; {} if the file does not exist."""
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        stop(f"could not read {path} ({error}); restore the file, or remove it to go on without it")
    return found if isinstance(found, dict) else {}


def run_name(folder):
    return os.path.basename(os.path.abspath(folder))


def model_shape(folder, flags):
    """(layers, channels) by the last checkpoint, or else by -e; None if neither tells."""
    model = str(flags.get("model"))
    checkpoints = sorted(glob.glob(os.path.join(glob.escape(folder), "step_*", "config.json")))
    for path in checkpoints[-1:] + [os.path.join(model, "config.json")]:
        config = read_json(path)
        if "n_layer" in config and "n_embd" in config:
            return config["n_layer"], config["n_embd"]
    spelled = re.fullmatch(r"l(\d+)h\d+c(\d+)", model)
    if spelled:
        return int(spelled[1]), int(spelled[2])
    return SHAPES.get(model[5:] if model.startswith("gpt2:") else model)

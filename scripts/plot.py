#!/usr/bin/python3
"""Draws memory plans as stacked bars, or the losses of runs.

  scripts/plot.py --plan OUT.svg FLAGS [FLAGS ...]     one bar for each `train_gpt2 --plan=json FLAGS`
  scripts/plot.py --loss OUT.svg DIR [DIR ...]         training and validation loss from each run's metrics.jsonl

e.g. scripts/plot.py --plan plan.svg '-e d48 -b 4 -r 1' '-e d48 -b 4 -r 4' '-e d48 -b 4 --fit=16'
The ending of OUT sets the format (svg, png, pdf). TRAIN_GPT2 names the program; the default is
./train_gpt2, or else the installed program. The parts of a bar are tensors in the order of the plan. Tensors below 1 %
of the largest bar are one part for each lifetime.
"""
import json
import os
import shlex
import subprocess
import sys

SMALL = 0.01  # of the largest bar
SHADES = {"state": "Blues", "saved": "Greens", "scratch": "Oranges"}


def stop(sentence):
    sys.exit(f"plot.py: {sentence}")


def read_plan(flags):
    """The first rank's plan. Stops with the program's error if the program refuses the flags."""
    program = os.environ.get("TRAIN_GPT2", "./train_gpt2" if os.path.exists("./train_gpt2") else "train_gpt2")
    try:
        done = subprocess.run([program, "--plan=json", *shlex.split(flags)], capture_output=True, text=True)
    except OSError as error:
        stop(f"could not run {program}: {error.strerror}; build it with make, or name it in TRAIN_GPT2")
    if done.returncode != 0:
        stop(done.stderr.strip())
    return json.loads(done.stdout)["ranks"][0]


def parts_of(plan, least):
    """[(lifetime, name, bytes)]; the small tensors of a lifetime are one entry."""
    parts = []
    for lifetime in SHADES:
        tensors = [t for t in plan["tensors"] if t["lifetime"] == lifetime]
        parts += [(lifetime, t["name"], t["bytes"]) for t in tensors if t["bytes"] >= least]
        rest = sum(t["bytes"] for t in tensors if t["bytes"] < least)
        if rest:
            parts.append((lifetime, "others", rest))
    return parts


def draw_plans(plt, axes, titles):
    plans = [read_plan(title) for title in titles]
    largest = max(plan["total"] for plan in plans)
    names = {}  # (lifetime, name): shade, the same in every bar
    for plan in plans:
        for lifetime, name, _ in parts_of(plan, SMALL * largest):
            names.setdefault((lifetime, name), None)
    for lifetime, shades in SHADES.items():
        members = [key for key in names if key[0] == lifetime]
        for i, key in enumerate(members):
            names[key] = plt.get_cmap(shades)(0.9 - 0.6 * i / max(len(members) - 1, 1))
    for at, plan in enumerate(plans):
        bottom = 0
        for lifetime, name, size in parts_of(plan, SMALL * largest):
            gib = size / 2**30
            axes.bar(at, gib, 0.6, bottom=bottom, color=names[lifetime, name], edgecolor="white", linewidth=0.5)
            if size > 0.03 * largest:
                axes.text(at, bottom + gib / 2, name, ha="center", va="center", fontsize=7)
            bottom += gib
        axes.text(at, bottom, f"{bottom:.2f}", ha="center", va="bottom", fontsize=9)
    handles = [plt.Rectangle((0, 0), 1, 1, color=color) for color in names.values()]
    axes.legend(handles, [f"{lifetime}: {name}" for lifetime, name in names], fontsize=6, loc="center left",
                bbox_to_anchor=(1, 0.5))
    axes.set_xticks(range(len(titles)), titles, fontsize=8)
    axes.set_ylabel("GiB")


def draw_losses(_, axes, folders):
    for folder in folders:
        try:
            with open(os.path.join(folder, "metrics.jsonl"), encoding="utf-8") as file:
                lines = [json.loads(line) for line in file]
        except OSError as error:
            stop(f"{folder}: could not read metrics.jsonl ({error.strerror}); give a run's folder")
        for key, style in (("loss", "-"), ("val_loss", "o--")):
            points = [(line["step"], line[key]) for line in lines if key in line]
            if points:
                axes.plot(*zip(*points), style, markersize=3, linewidth=0.8, label=f"{folder}: {key}")
    axes.legend(fontsize=8)
    axes.set_xlabel("step")
    axes.set_ylabel("loss")


def main():
    kinds = {"--plan": draw_plans, "--loss": draw_losses}
    if sys.argv[1:] in (["-h"], ["--help"]):
        print(__doc__.strip())
        return
    if len(sys.argv) < 4 or sys.argv[1] not in kinds:
        print(__doc__.strip(), file=sys.stderr)
        sys.exit(2)
    try:
        import matplotlib
    except ImportError:
        stop("matplotlib is missing; install python3-matplotlib (Debian) or matplotlib (PyPI)")
    matplotlib.use("Agg")
    matplotlib.rcParams["svg.fonttype"] = "none"  # text stays text
    import matplotlib.pyplot as plt
    figure, axes = plt.subplots(figsize=(10, 6))
    kinds[sys.argv[1]](plt, axes, sys.argv[3:])
    figure.savefig(sys.argv[2], bbox_inches="tight")


if __name__ == "__main__":
    main()

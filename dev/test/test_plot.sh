#!/usr/bin/env bash
# scripts/plot.py: a bar for each plan, with the total of --plan; runs as pictures and as a page; sweeps, their table;
# damaged logs; errors.
#   TRAIN_GPT2=./train_gpt2 dev/test/test_plot.sh
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
. dev/test/harness.sh

export TRAIN_GPT2=${TRAIN_GPT2:-./train_gpt2} PYTHONDONTWRITEBYTECODE=1
here=$(mktemp -d)
errors=$here/errors
trap 'rm -rf "$here"' EXIT
# python3 may be an environment without matplotlib, while Debian's Python has it
matplotlib=yes
if ! python3 -c 'import matplotlib' 2>/dev/null; then
    mkdir "$here/bin" && ln -s /usr/bin/python3 "$here/bin" && PATH=$here/bin:$PATH
    python3 -c 'import matplotlib' 2>/dev/null || matplotlib=
fi

plot() { scripts/plot.py "$@" 2>"$errors" || echo "plot.py $*: status $?, $(head -c 500 "$errors")"; }
# contains FILE TEXT...: the file has each text
contains() {
    local text
    for text in "${@:2}"; do
        grep -qF -- "$text" "$1" || echo "$(basename "$1"): expected the text '$text'"
    done
}
# lacks FILE TEXT: the file does not have the text
lacks() { grep -qF -- "$2" "$1" && echo "$(basename "$1"): did not expect the text '$2'"; }
# in_plot PROGRAM ARGUMENT...: prints the differences that PROGRAM finds with plot.py as the module `plot`
in_plot() {
    python3 - "${@:2}" 2>&1 <<END
import importlib.util, json, re, sys
sys.path.insert(0, "scripts")
spec = importlib.util.spec_from_file_location("plot", "scripts/plot.py")
plot = importlib.util.module_from_spec(spec)
spec.loader.exec_module(plot)
def expect(what, found, expected):
    if found != expected:
        print(f"{what}: found {found}, expected {expected}")
def page(path):
    return json.loads(re.search(r"const data = (.*?);</script>", open(path).read())[1])
$1
END
}

# ---- runs: `tiny` has a null, unknown fields, a step written twice and half a last line; `scored` is a GPT-2 124M

mkdir "$here/tiny" "$here/scored" "$here/empty"
cat >"$here/tiny/metrics.jsonl" <<'END'
{"step":0,"val_loss":5.5}
{"step":1,"loss":5,"grad_norm":3,"lr":0.001,"ms":500,"tokens_per_s":2000,"power_w":310,"note":"a","ok":true}
{"step":2,"loss":9,"grad_norm":9,"lr":0.001,"ms":9,"tokens_per_s":9}
{"step":2,"loss":4,"grad_norm":2,"lr":0.001,"ms":250,"tokens_per_s":4000,"power_w":330}
{"step":3,"loss":null,"grad_norm":NaN,"lr":0.001,"ms":250,"tokens_per_s":4000,"power_w":null}
{"step":3,"val_loss":4.25}
END
printf '{"step":4,"loss":3,"gra' >>"$here/tiny/metrics.jsonl"
echo '{"model":"l4h4c128","learning-rate":0.001,"threads":1,"output":"a","prompt":"</script>"}' \
    >"$here/tiny/config.json"
printf '{"step":%d,"loss":%s,"ms":10,"tokens_per_s":1000}\n{"step":%d,"hellaswag":%s}\n' 1 11 1 0.25 2 10 2 0.26 \
    >"$here/scored/metrics.jsonl"
echo '{"model":"d12","learning-rate":0.0006,"threads":1,"output":"b","prompt":""}' >"$here/scored/config.json"

report "a run's columns: tokens and time add up, the later of two lines counts, null and NaN are None" "$(in_plot '
run = plot.join([plot.read_run(sys.argv[1])])
expect("steps", run["steps"], [0, 1, 2, 3])
expect("tokens", run["tokens"], [0, 1000, 2000, 3000])
expect("time", run["time"], [0, 0.5, 0.75, 1.0])
expect("loss", run["fields"]["loss"], [[1, 2, 3], [5, 4, None]])
expect("grad_norm", run["fields"]["grad_norm"], [[1, 2, 3], [3, 2, None]])
expect("val_loss", run["fields"]["val_loss"], [[0, 3], [5.5, 4.25]])
expect("power_w", run["fields"]["power_w"], [[1, 2, 3], [310, 330, None]])
expect("fields", "note" in run["fields"] or "ok" in run["fields"], False)' "$here/tiny")"
report "smoothing is an exponential average without a pull to 0, and keeps NaN" "$(in_plot '
expect("factor 0.5", plot.smoothed([1, None, 3], 0.5), [1, None, 1.75 / 0.75])
expect("factor 0", plot.smoothed([1, 3], 0), [1, 3])
for factor in (0.5, 0.999, None):  # the first values neither start at 0 nor stay at the first value
    if not all(abs(value - 7) < 1e-9 for value in plot.smoothed([7.0] * 1000, factor)):
        print(f"factor {factor}: a constant does not stay constant")
expect("rounded mean of two", round(plot.smoothed([2.0, 4.0], 0.999)[1], 2), 3.0)
expect("a run of 100 steps or fewer", plot.smoothed([1, 3, 2], None), [1, 3, 2])
expect("1 % of 1000 steps", plot.smoothed(list(range(1000)), None), plot.smoothed(list(range(1000)), 0.9))')"
report "the vertical range leaves out the start of a run and outliers" "$(in_plot '
loss = [10.0] * 20 + [3.0 + i / 1000 for i in range(980)]
loss[500] = 99.0
run = {"steps": list(range(1000)), "fields": {"loss": [list(range(1000)), loss]}, "published": {}}
low, high = plot.vertical_range([run], ["loss"])
if not (2.9 < low < 3.1 and 3.9 < high < 4.1):
    print(f"found {low} to {high}, expected about 3 to 4")')"
report "GPT-2's and GPT-3's accuracies by -e, by a checkpoint, and none for another shape" "$(in_plot '
import os
folder = sys.argv[1]
expect("d12", plot.read_run(folder)["published"], {"GPT-2 124M": 0.2945, "GPT-3 125M": 0.337})
for flag, shape in (("gpt2:d48", (48, 1600)), ("gpt3:c768", (12, 768)), ("l12h12c768", (12, 768)), ("d6", None)):
    expect(flag, plot.model_shape(folder, {"model": flag}), shape)
os.mkdir(folder + "/step_00000009")
os.mkdir(folder + "/step_00000010")
for step, size in ((9, 64), (10, 1600)):
    with open(f"{folder}/step_{step:08d}/config.json", "w") as file:
        json.dump({"n_layer": 48, "n_embd": size}, file)
expect("checkpoint of 1558M", plot.read_run(folder)["published"], {"GPT-2 1558M": 0.4889, "GPT-3 1.3B": 0.547})
' "$here/scored"
    rm -r "$here/scored/"step_*)"

# ---- sweeps

# sweep_run FOLDER RATE SEED VAL_LOSS LOSS...: a run of ten steps a second, validated after step 2; of flags that do not
# divide a group, output, threads and recompute have other values in each run
sweep_run() {
    local step=0 loss
    mkdir -p "$here/$1"
    printf '{"model":"d6","learning-rate":%s,"seed":%s,"output":"%s","threads":%d,"recompute":"%s","keep":%d}\n' \
        "$2" "$3" "$1" "$3" "$1" "$3" >"$here/$1/config.json"
    for loss in "${@:5}"; do
        printf '{"step":%d,"loss":%s,"ms":100,"tokens_per_s":20000}\n' $((++step)) "$loss"
        [ $step != 2 ] || printf '{"step":2,"val_loss":%s}\n' "$4"
    done >"$here/$1/metrics.jsonl"
}
sweep_run sweep/a 0.02 1 2.5 4 3 2
sweep_run sweep/b 0.02 2 3.5 6 4
sweep_run sweep/c 0.001 1 2 5 5
sweep_run sweep/d 0.001 3 4 5 null
sweep=("$here"/sweep/*)
report "runs that differ by seed are a group: its label, its mean and its band, up to the shortest run" "$(in_plot '
groups, flags = plot.read_groups(sys.argv[1:])
expect("labels", [group["name"] for group in groups], ["learning-rate 0.001", "learning-rate 0.02"])
expect("runs", [[run["name"] for run in group["runs"]] for group in groups], [["c", "d"], ["a", "b"]])
expect("flags", flags, {"learning-rate": [0.001, 0.02]})
expect("steps", [group["steps"] for group in groups], [[1, 2], [1, 2]])
expect("tokens, time", (groups[1]["tokens"], groups[1]["time"]), ([2000, 4000], [0.1, 0.2]))
expect("mean, lowest, highest", plot.curve(groups[1], "loss", 0), [[5, 3.5], [4, 3], [6, 4]])
smooth = plot.curve(groups[1], "loss", 0.5)
expect("smoothed", [[round(y, 4) for y in ys] for ys in smooth], [[5, 4], [4, 3.3333], [6, 4.6667]])
expect("NaN", plot.curve(groups[0], "loss", 0), [[5, None], [5, None], [5, None]])
expect("validation", plot.curve(groups[1], "val_loss", 0.5), [[3], [2.5], [3.5]])
expect("validation is not smoothed", plot.curve({"fields": {"val_loss": [[1, 2], [1, 3]]}}, "val_loss", 0.5)[0], [1, 3])
expect("one run", plot.read_groups(sys.argv[1:2])[0][0]["name"], "a")
expect("one seed each", [group["name"] for group in plot.read_groups(sys.argv[1:4:2])[0]],
       ["learning-rate 0.001", "learning-rate 0.02"])' "${sweep[@]}")"
report "a seed twice: flags that change only the speed divide the group, or else the folders" "$(
    cp -r "$here/sweep/a" "$here/again"
    sed 's/"seed":2/"seed":1/' -i.bak "$here/sweep/b/config.json"
    in_plot '
expect("other speed", [group["name"] for group in plot.read_groups(sys.argv[1:3])[0]],
       ["threads 1, recompute sweep/a", "threads 2, recompute sweep/b"])
expect("the same flags", [group["name"] for group in plot.read_groups(sys.argv[1::2])[0]], ["a", "again"])
' "$here/sweep/a" "$here/sweep/b" "$here/again"
    mv "$here/sweep/b/config.json.bak" "$here/sweep/b/config.json"
    for run in 0_1 0_2 4_1 4_2; do
        cp -r "$here/sweep/a" "$here/$run"
        echo "{\"seed\":${run#*_},\"recompute\":${run%_*}}" >"$here/$run/config.json"
    done
    in_plot '
groups, _ = plot.read_groups(sys.argv[1:])
expect("levels of -r", [(group["name"], len(group["runs"])) for group in groups],
       [("recompute 0", 2), ("recompute 4", 2)])
' "$here"/[04]_[12]
)"
report "the flags that do not divide a group are flags of the program" "$(
    "$TRAIN_GPT2" --help >"$here/help"
    in_plot '
help = open(sys.argv[1]).read()
print(*(name for name in plot.ASIDE + plot.SPEED if not re.search(f" --{name}[ [\n]", help)), sep="\n")
' "$here/help"
)"
report "the final loss of each run against the flag that differs, if it is one and has numbers" "$(in_plot '
read = lambda *folders: plot.sweep_of(*plot.read_groups(folders), None)
a, b, c, d, tiny = sys.argv[1:]
expect("sweep", read(a, b, c, d), {"flag": "learning-rate", "title": "final validation loss against learning-rate",
                                   "log": True, "points": [[0.001, [2, 4]], [0.02, [2.5, 3.5]]]})
expect("several flags", read(a, tiny), None)
groups, flags = plot.read_groups([a, c])
expect("words", plot.sweep_of(groups, {"model": ["d6", 12]}, None), None)
expect("a decade", plot.sweep_of(groups, {"seed": [1, 10]}, None)["log"], False)
for group in groups:
    for run in group["runs"]:
        for _, _, fields in run["rows"].values():
            fields.pop("val_loss", None)
sweep = plot.sweep_of(groups, flags, None)
expect("without validation", (sweep["title"], sweep["points"]),
       ("final training loss against learning-rate", [[0.001, [5]], [0.02, [2]]]))' "${sweep[@]}" "$here/tiny")"
report "--table, after the runs or before them, and as CSV" "$(
    plot "${sweep[@]}" --table >"$here/table"
    plot --table "${sweep[@]}" | diff "$here/table" -
    diff <(sed 's/ to /-/g' "$here/table") - <<'END'
| learning-rate | seeds | final validation loss | best validation loss | final training loss | tokens | time |
| --- | --- | --- | --- | --- | --- | --- |
| 0.001 | 2 | 3.0000 (2.0000-4.0000) | 3.0000 (2.0000-4.0000) | NaN | 4000 | 0:00:00 |
| 0.02 | 2 | 3.0000 (2.5000-3.5000) | 3.0000 (2.5000-3.5000) | 3.0000 (2.0000-4.0000) | 5000 (4000-6000) | 0:00:00 |
END
    plot "${sweep[@]}" --table csv >"$here/table.csv"
    plot --table=csv "${sweep[@]}" | diff "$here/table.csv" -
    in_plot '
import csv
rows = list(csv.DictReader(open(sys.argv[1])))
expect("rates", [row["learning-rate"] for row in rows], ["0.001", "0.02"])
expect("columns", [rows[1]["final_loss" + end] for end in ("", "_min", "_max")], ["3", "2", "4"])
expect("NaN", rows[0]["final_loss"], "nan")
expect("tokens, time", (rows[1]["tokens_max"], rows[1]["seconds"]), ("6000", "0.25"))' "$here/table.csv"
    printf '{"step":3,"val_loss":9}\n' >>"$here/again/metrics.jsonl"
    plot "$here/again" --table | grep -F '| again | 1 | 9.0000 | 2.5000 | 2.0000 |' >/dev/null ||
        echo "expected the last and the best validation loss in a row of the run"
    plot "$here/scored" --table | grep -F '| scored | 1 |  |  | 10.0000 | 20 |' >/dev/null ||
        echo "expected no validation loss in a row of a run without validation"
)"

# ---- pages; a Python without matplotlib is enough

mkdir "$here/without"
echo 'raise ImportError' >"$here/without/matplotlib.py"
report "a page needs no matplotlib and loads nothing" "$(
    PYTHONPATH=$here/without plot "$here/tiny" "$here/scored" -o "$here/page.html" --against tokens --smooth 0.5
    grep -nE 'https?:|src=|href=|@import|url\(' "$here/page.html" | cut -c 1-200
)"
report "a page's data: panels, curves, lines, flags that differ" "$(in_plot '
data = page(sys.argv[1])
expect("panels", [panel["fields"] for panel in data["panels"]],
       [["loss"], ["val_loss"], ["hellaswag"], ["lr"], ["grad_norm"], ["tokens_per_s"]])
expect("lines", data["panels"][2]["published"], {"GPT-2 124M": 0.2945, "GPT-3 125M": 0.337})
expect("runs", [run["name"] for run in data["runs"]],
       ["model l4h4c128, learning-rate 0.001", "model d12, learning-rate 0.0006"])
expect("colors", len({run["color"] for run in data["runs"]}), 2)
expect("loss", data["runs"][0]["fields"]["loss"], [[1, 2, 3], [5, 4, None]])
expect("axis", (data["against"], data["smooth"]), ("tokens", 0.5))
expect("flags", data["flags"], {"model": ["l4h4c128", "d12"], "learning-rate": ["0.001", "0.0006"],
                                "prompt": ["</script>", ""]})' "$here/page.html")"
report "--panels chooses fields, + joins panels, all draws unknown fields" "$(
    plot "$here/tiny" -o "$here/some.html" --panels loss+val_loss,power_w
    plot "$here/tiny" -o "$here/all.html" --panels all
    in_plot '
expect("chosen", [panel["fields"] for panel in page(sys.argv[1])["panels"]], [["loss", "val_loss"], ["power_w"]])
expect("all", [panel["fields"] for panel in page(sys.argv[2])["panels"]],
       [["loss"], ["val_loss"], ["lr"], ["grad_norm"], ["tokens_per_s"], ["ms"], ["power_w"]])
' "$here/some.html" "$here/all.html"
)"
report "a long run is thinned to a page's size, and keeps its evaluations and its last step" "$(in_plot '
steps = list(range(25000))
run = {"steps": steps, "tokens": steps, "time": steps, "fields": {"loss": [steps, steps], "val_loss": [[7, 8], [1, 2]]}}
thin = plot.thinned(run, ["loss", "val_loss"])
expect("every", thin["every"], 3)
expect("ends", (thin["steps"][0], thin["steps"][-1]), (0, 24999))
expect("length", len(thin["steps"]), len(thin["fields"]["loss"][0]))
expect("evaluations", [thin["steps"][row] for row in thin["fields"]["val_loss"][0]], [7, 8])')"
# in_page FILE PROGRAM: prints what PROGRAM finds wrong in the page's script, with canvases of 400 x 250 pixels;
# calls(panel) are the calls of a drawing
in_page() {
    node - "$@" <<'END' 2>&1
const html = require("fs").readFileSync(process.argv[2], "utf8");
const [data, code] = [...html.matchAll(/<script>(.*?)<\/script>/gs)].map(match => match[1]);
globalThis.devicePixelRatio = 1;
globalThis.document = {};
globalThis.getComputedStyle = () => ({getPropertyValue: () => ""});
const library = `
function calls(panel, drawer = draw) {
    const found = [], get = (_, name) => (...values) => found.push([name, ...values]);
    panel.canvas = {clientWidth: 400, clientHeight: 250, getContext: () => new Proxy({}, {get, set: () => true})};
    drawer(panel);
    return found;
}
const numbers = panel => calls(panel).filter(([name, , , y]) => name == "fillText" && y == 229);
const expect = (what, found, expected) => JSON.stringify(found) == JSON.stringify(expected) ||
    console.log(what + ": found " + JSON.stringify(found) + ", expected " + JSON.stringify(expected));`;
eval(data + code.replace(/start\(\);\s*$/, "") + library + process.argv[3]);
END
}
if command -v node >/dev/null; then
    plot "${sweep[@]}" -o "$here/sweep.html" --smooth 0.5
    report "the page's script: smoothing, mean and band, the same numbers as plot.py" "$(in_page "$here/sweep.html" '
const [loss] = data.panels, line = curves(loss)[1], round = values => values.map(y => +y.toFixed(4));
expect("label", line.run.name, "learning-rate 0.02");
expect("mean, lowest, highest", [line.ys, line.low, line.high].map(round), [[5, 4], [4, 3.3333], [6, 4.6667]]);
expect("raw", line.raw, [5, 3.5]);
expect("NaN", curves(loss)[0].low, [5, null]);
expect("short run", smoothed([1, 3, 2], null), [1, 3, 2]);
line.run.every = 2;
expect("thinned, X squared", round(curves(loss)[1].ys), [5, 3.8]);
const constant = Array(1000).fill(7);
expect("constant", round(smoothed(constant, null)), constant);
expect("window", smoothed([...constant.keys()], null), smoothed([...constant.keys()], 0.9));
const fills = calls(loss).filter(([name]) => name == "fill").length;
expect("bands", fills, 3); // before and after the NaN, and the other group
expect("points", calls(data.sweep, drawSweep).filter(([name]) => name == "arc").length, 4);
expect("ticks of the flag", numbers(data.panels[0]).length > 1 &&
    calls(data.sweep, drawSweep).filter(([name, , , y]) => name == "fillText" && y == 229).map(call => call[1]),
    ["0.001", "0.02"])')"
    report "the page's last tick is a whole number, inside the picture" "$(in_page "$here/sweep.html" '
expect("two steps", numbers(data.panels[0]).map(call => call[1]), ["0", "1", "2"]);
expect("thousands", ticks(0, 9134, 6, true).at(-1), 8000);
expect("a part of a step", ticks(0.2, 0.8, 6, true).every(Number.isFinite), true);
for (const run of data.runs) { run.steps = [1, 1500000]; }
const [, text, x] = numbers(data.panels[0]).at(-1);
expect("last tick", text, "1.5M");
expect("at the right", x > 370 && x + 4 * text.length <= 400, true)')"
else
    echo "no node: the numbers of the page's script are not tested"
    echo "[  SKIPPED ] 2 test(s)."
fi
for browser in chromium google-chrome; do
    $browser --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --virtual-time-budget=5000 \
        --user-data-dir="$here/profile" --dump-dom "file://$here/page.html" >"$here/dom" 2>/dev/null && break
done
if [ -s "$here/dom" ]; then
    report "a browser runs the page's script" "$(contains "$here/dom" '<td>4.25</td>' '<th>--learning-rate</th>' \
        '<td>NaN</td>' 'model d12, learning-rate 0.0006</label>')"
else
    skip "chromium or google-chrome" 1 "the page's script"
fi
report "a run of the trainer" "$(
    "$TRAIN_GPT2" -i README.md -e l1h1c8 -b 1 -t 8 -d 8 -x 3 -v 2 -m 1 -s 0 --threads 1 -o "$here/real" \
        >"$here/log" 2>&1 || tail -n 1 "$here/log"
    plot "$here/real" -o "$here/real.html"
    in_plot '
data = page(sys.argv[1])
expect("steps", data["runs"][0]["steps"], [0, 1, 2, 3])
expect("tokens", data["runs"][0]["tokens"], [0, 8, 16, 24])
expect("panels", [panel["fields"][0] for panel in data["panels"]],
       ["loss", "val_loss", "lr", "grad_norm", "tokens_per_s"])' "$here/real.html"
)"

# ---- pictures

if [ -n "$matplotlib" ]; then
    report "--plan: a bar for each line of flags, with the total" "$(
        flags=('-e d12 -b 4 -r 0' '-e d12 -b 4 -r 4')
        plot --plan "$here/plan.svg" "${flags[@]}"
        for f in "${flags[@]}"; do
            read -ra words <<<"$f"
            gib=$("$TRAIN_GPT2" --plan "${words[@]}" | awk '/^total on the/ { printf "%.2f", $NF / 1024 }')
            contains "$here/plan.svg" ">$f<" ">$gib<"
        done
    )"
    report "a picture of two runs: titles, legend, lines of HellaSwag" "$(
        plot "$here/tiny" "$here/scored" -o "$here/two.svg" --against time
        contains "$here/two.svg" ">training loss<" ">validation loss<" ">HellaSwag accuracy<" ">learning rate<" \
            ">gradient norm<" ">tokens per second<" ">model l4h4c128, learning-rate 0.001<" ">GPT-2 124M: 0.2945<" \
            ">GPT-3 125M: 0.337<" ">training time in seconds<"
    )"
    report "panels without data are left out" "$(
        plot "$here/tiny" -o "$here/one.svg"
        contains "$here/one.svg" ">training loss<" ">step<" ">tiny<"
        lacks "$here/one.svg" HellaSwag
        lacks "$here/one.svg" GPT-
    )"
    report "the same run gives the same SVG" "$(
        plot "$here/tiny" -o "$here/again.svg"
        cmp "$here/one.svg" "$here/again.svg" 2>&1
    )"
    report "a sweep: labels, the band, the panel of the final loss; ticks are whole" "$(
        plot "${sweep[@]}" -o "$here/sweep.svg"
        contains "$here/sweep.svg" ">learning-rate 0.001<" ">learning-rate 0.02<" ">lowest to highest seed<" \
            ">final validation loss against learning-rate<" ">0.02<" "fill-opacity: 0.2\""
        plot "$here/sweep/a" -o "$here/steps.svg" --panels loss
        contains "$here/steps.svg" ">1<" ">2<" ">3<"
        lacks "$here/steps.svg" ">1.5<"
    )"
    report "the raw line is visible behind the smoothed one; ticks of a long run are whole" "$(
        mkdir "$here/long"
        for step in {0..13000..40}; do echo "{\"step\":$step,\"loss\":$((step % 7))}"; done >"$here/long/metrics.jsonl"
        plot "$here/long" -o "$here/long.svg"
        plot "$here/long" -o "$here/raw.svg" --smooth 0
        contains "$here/long.svg" "stroke-opacity: 0.25" ">10k<"
        lacks "$here/long.svg" ">12.5k<"
        lacks "$here/raw.svg" "stroke-opacity: 0.25"
    )"
    report "a PNG" "$(
        plot "$here/tiny" "$here/scored" -o "$here/two.png" --smooth 0 --against tokens --panels loss+val_loss,hellaswag
        [ "$(head -c 4 "$here/two.png" | tail -c 3)" = PNG ] || echo "two.png is no PNG"
    )"
else
    skip python3-matplotlib 5 pictures
fi

# ---- errors

# stops STATUS WORDS ARGUMENT...: plot.py ends with the status and one sentence with these words
stops() {
    report "an error for ${*:3}" "$(
        scripts/plot.py "${@:3}" >/dev/null 2>"$errors"
        found=$?
        [ $found = "$1" ] || echo "status $found, expected $1"
        grep -q -- "^plot.py: .*$2" "$errors" || echo "expected '$2', found: $(head -c 300 "$errors")"
        [ "$(wc -l <"$errors")" = 1 ] || echo "$(wc -l <"$errors") lines, expected one"
    )"
}
cd "$here" || exit
ln -s "$OLDPWD/scripts" scripts
case $TRAIN_GPT2 in ./*) TRAIN_GPT2=$OLDPWD/$TRAIN_GPT2 ;; esac
cp -r tiny broken
sed -i '2s/.*/{"step":1,"loss":5/' broken/metrics.jsonl
cp -r tiny flagless
echo '{' >flagless/config.json
: >empty/metrics.jsonl
stops 2 "could not read nowhere/metrics.jsonl (No such file or directory); give a run directory" nowhere -o x.html
stops 2 "line 2 of broken/metrics.jsonl is not a JSON object with a step; delete the line" broken -o x.html
stops 2 "could not read flagless/config.json" flagless -o x.html
stops 2 "empty: metrics.jsonl has no values to draw yet" empty -o x.html
stops 2 "x.gif ends in '.gif'; expected .html, .png or .svg" tiny -o x.gif
stops 2 "required: -o, or --table" tiny
stops 2 "argument --table: invalid choice: 'yaml'" tiny --table=yaml
stops 2 "no run has the field 'accuracy'; the fields are val_loss, loss" tiny -o x.html --panels loss,accuracy
stops 2 "argument --smooth: expected a number from 0 to below 1, found '1'" tiny -o x.html --smooth 1
stops 2 "argument --against: invalid choice: 'epochs'" tiny -o x.html --against epochs
stops 2 "required: run" -o x.html
stops 2 "unrecognized arguments: --what" tiny -o x.html --what
stops 1 "could not write nowhere/x.html: No such file or directory" tiny -o nowhere/x.html
stops 2 "--plan: expected an output file" --plan x.svg
stops 2 "x.jpeg ends in '.jpeg'" --plan x.jpeg '-e d12'
[ -z "$matplotlib" ] || stops 2 "neither a shape" --plan x.svg "-e d99"
[ -z "$matplotlib" ] || stops 2 "-r all works only with --plan, not --plan=json" --plan x.svg "-e d6 -r all"
export PYTHONPATH=$here/without
stops 2 "/.* has no matplotlib; install python3-matplotlib (Debian's Python), or run /.* -m pip install matplotlib" \
    tiny -o x.png
report "an error writes nothing" "$(compgen -G "x.*")"

# ---- every Python script

cd "$OLDPWD" || exit
oldest=$(sed -nE 's/.* Python (3\.[0-9]+) or later.*/\1/p' doc/install.md)
report "scripts take the python3 of PATH, an environment's too, and the syntax of Python $oldest" "$(
    git ls-files -co --exclude-standard '*.py' | python3 -c '
import ast, sys
oldest = tuple(map(int, sys.argv[1].split(".")))
paths = sys.stdin.read().split("\n")[:-1]
if len(paths) < 20:
    print("found only", paths)
for path in paths:
    text = open(path, encoding="utf-8").read()
    first = text.split("\n")[0]
    if first.startswith("#!") and first != "#!/usr/bin/env python3":
        print(f"{path}: expected #!/usr/bin/env python3, found {first}")
    try:
        ast.parse(text, path, feature_version=oldest)
    except SyntaxError as error:
        print(f"{path}, line {error.lineno}: {error.msg}")' "$oldest" 2>&1
)"
end_tests

#!/usr/bin/env bash
# scripts/plot.py: curves, groups of seeds and the table; the page, with its script in node; pictures; errors.
. "$(dirname "$0")/harness.sh"

root=$PWD
export PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$root/scripts
in_scratch
# python3 may be an environment without matplotlib, while Debian's Python has it
if ! python3 -c 'import matplotlib' 2>/dev/null; then
    mkdir ../bin && ln -s /usr/bin/python3 ../bin && PATH=$PWD/../bin:$PATH
fi

plot() { "$root/scripts/plot.py" "$@" 2>"$err" || echo "plot.py $*: status $?, $(head -c 500 "$err")"; }
# in_plot PROGRAM ARGUMENT...: prints the differences that PROGRAM finds with the functions of plot.py
in_plot() {
    python3 - "${@:2}" 2>&1 <<END
import json, re, sys
from plot import *
def expect(what, found, expected):
    if found != expected:
        print(f"{what}: found {found}, expected {expected}")
def page(path):
    return json.loads(re.search(r"const data = (.*?);</script>", open(path).read())[1])
$1
END
}

# ---- runs: `tiny` has a null, unknown fields, a step written twice and half a last line; `scored` is a GPT-2 124M

mkdir tiny scored
cat >tiny/metrics.jsonl <<'END'
{"step":0,"val_loss":5.5}
{"step":1,"loss":5,"grad_norm":3,"lr":0.001,"ms":500,"tokens_per_s":2000,"power_w":310,"note":"a","ok":true}
{"step":2,"loss":9,"grad_norm":9,"lr":0.001,"ms":9,"tokens_per_s":9}
{"step":2,"loss":4,"grad_norm":2,"lr":0.001,"ms":250,"tokens_per_s":4000,"power_w":330}
{"step":3,"loss":null,"grad_norm":NaN,"lr":0.001,"ms":250,"tokens_per_s":4000,"power_w":null}
{"step":3,"val_loss":4.25}
END
printf '{"step":4,"loss":3,"gra' >>tiny/metrics.jsonl
echo '{"model":"l4h4c128","learning-rate":0.001,"offload":1,"output":"a","prompt":"</script>"}' >tiny/config.json
printf '{"step":%d,"loss":%s,"ms":10,"tokens_per_s":1000}\n{"step":%d,"hellaswag":%s}\n' 1 11 1 0.25 2 10 2 0.26 \
    >scored/metrics.jsonl
echo '{"model":"gpt2:d12","learning-rate":0.0006,"offload":1,"output":"b","prompt":""}' >scored/config.json

report "a run's columns: tokens and time add up, the later of two lines counts, null and NaN are None" "$(in_plot '
run = read_run("tiny")
columns = lambda name: curve({"runs": [run]}, name, 0)["columns"]
expect("a row", [name for name in run["rows"][1]],
       ["loss", "grad_norm", "lr", "ms", "tokens_per_s", "power_w", "steps", "tokens", "time"])
expect("tokens", columns("loss")["tokens"], [1000, 2000, 3000])
expect("time", columns("val_loss")["time"], [0, 1])
expect("loss", columns("loss")["mean"], [5, 4, None])
expect("grad_norm", columns("grad_norm")["raw"], [3, 2, None])
expect("val_loss", (columns("val_loss")["steps"], columns("val_loss")["mean"]), ([0, 3], [5.5, 4.25]))
expect("a field without values", curve({"runs": [run]}, "hellaswag", 0), None)')"

# ---- groups of seeds

# sweep_run FOLDER RATE SEED VAL_LOSS LOSS...: a run of ten steps a second, validated after step 2; of flags that do not
# divide a group, output, offload and recompute have other values in each run
sweep_run() {
    local step=0 loss
    mkdir -p "$1"
    printf '{"model":"d6","learning-rate":%s,"seed":%s,"output":"%s","offload":%d,"recompute":"%s","keep":%d}\n' \
        "$2" "$3" "$1" "$3" "$1" "$3" >"$1/config.json"
    for loss in "${@:5}"; do
        printf '{"step":%d,"loss":%s,"ms":100,"tokens_per_s":20000}\n' $((++step)) "$loss"
        [ $step != 2 ] || printf '{"step":2,"val_loss":%s}\n' "$4"
    done >"$1/metrics.jsonl"
}
sweep_run sweep/a 0.02 1 2.5 4 3 2
sweep_run sweep/b 0.02 2 3.5 6 4
sweep_run sweep/c 0.001 1 2 5 5
sweep_run sweep/d 0.001 3 4 5 null
cp -r sweep/a again
report "runs that differ by seed are a group: its label, its mean and its band, up to the shortest run" "$(in_plot '
groups, flags = read_groups(sys.argv[1:])
names = lambda *folders: [group["name"] for group in read_groups(folders)[0]]
def columns(i, name, factor):
    found = curve(groups[i], name, factor)["columns"]
    return [[y if y is None else round(y, 4) for y in found[column]] for column in ("steps", "mean", "low", "high")]
expect("labels", [group["name"] for group in groups], ["learning-rate 0.001", "learning-rate 0.02"])
expect("runs", [[run["name"] for run in group["runs"]] for group in groups], [["c", "d"], ["a", "b"]])
expect("flags", flags, {"learning-rate": [0.001, 0.02]})
expect("columns", columns(1, "loss", 0), [[1, 2], [5, 3.5], [4, 3], [6, 4]])
expect("smoothed", columns(1, "loss", 0.5)[1:], [[5, 4], [4, 3.3333], [6, 4.6667]])
expect("NaN", columns(0, "loss", 0)[1:], [[5, None], [5, None], [5, None]])
expect("validation, never smoothed", columns(1, "val_loss", 0.5)[1:], [[3], [2.5], [3.5]])
expect("one run", names("sweep/a"), ["a"])
expect("two of a name", names("sweep/a", "./sweep/a"), ["sweep/a", "./sweep/a"])
expect("a seed twice, and no flag that differs", names("sweep/a", "again"), ["a", "again"])
expect("one group", names("sweep/a", "sweep/b"), ["a and 1 more"])
expect("two flags", names("tiny", "scored"),
       ["model l4h4c128, learning-rate 0.001", "model gpt2:d12, learning-rate 0.0006"])' sweep/*)"
report "--table: a row for each group" "$(
    plot --table sweep/* >table
    diff <(sed 's/ to /-/g; s/[.]0000//g' table) - <<'END'
| run | learning-rate | seeds | final validation loss | best validation loss | final training loss | tokens | time |
| --- | --- | --- | --- | --- | --- | --- | --- |
| learning-rate 0.001 | 0.001 | 2 | 3 (2-4) | 3 (2-4) | NaN | 4000 | 0:00:00 |
| learning-rate 0.02 | 0.02 | 2 | 3 (2.5000-3.5000) | 3 (2.5000-3.5000) | 3 (2-4) | 5000 (4000-6000) | 0:00:00 |
END
    printf '{"step":3,"val_loss":9}\n' >>again/metrics.jsonl
    plot again --table | says /dev/stdin '| again | 1 | 9.0000 | 2.5000 | 2.0000 |'
    plot scored --table | says /dev/stdin '| scored | 1 |  |  | 10.0000 | 20 |'
)"

# ---- pages; a Python without matplotlib is enough

mkdir ../without
echo 'raise ImportError' >../without/matplotlib.py
report "a page needs no matplotlib and loads nothing; its panels, curves, lines and table" "$(
    PYTHONPATH=$PWD/../without plot tiny scored -o page.html --against tokens --smooth 0.5
    grep -nE 'https?:|src=|href=|@import|url\(' page.html | cut -c 1-200
    plot tiny -o some.html --panels loss+val_loss,power_w
    plot tiny -o all.html --panels all
    says page.html "<td>model gpt2:d12, learning-rate 0.0006</td><td>gpt2:d12</td><td>0.0006</td>"
    in_plot '
data = page("page.html")
fields = lambda data: [[c["field"] for c in panel["curves"]] for panel in data["panels"]]
expect("panels", "; ".join(panel["title"] for panel in data["panels"]),
       "training loss; validation loss; HellaSwag accuracy; learning rate; gradient norm; tokens per second")
expect("lines", data["panels"][2]["lines"], {"GPT-2 124M": 0.2945, "GPT-3 125M": 0.337})
expect("loss", data["panels"][0]["curves"][0]["columns"]["mean"], [5, 4.33333, None])
expect("axis", data["axis"], "tokens")
expect("chosen", fields(page("some.html")), [["loss", "val_loss"], ["power_w"]])
expect("all", fields(page("all.html")),
       [["loss"], ["val_loss"], ["lr"], ["grad_norm"], ["tokens_per_s"], ["ms"], ["power_w"]])'
)"
if command -v node >/dev/null; then
    plot sweep/* -o sweep.html
    report "the page's script: it starts, draws the bands of every group, zooms, and has whole ticks" "$(
        node - sweep.html 2>&1 <<'END'
const html = require("fs").readFileSync(process.argv[2], "utf8"), byName = {}, calls = [];
const [data, code] = [...html.matchAll(/<script>(.*?)<\/script>/gs)].map(match => match[1]);
const pen = new Proxy({}, {get: (_, name) => (...values) => calls.push([name, ...values]), set: () => true});
const element = () => ({style: {}, clientWidth: 400, clientHeight: 250, appendChild: child => child, append() {},
    replaceChildren() {}, getContext: () => pen, offsetWidth: 0, offsetHeight: 0});
const expect = (what, found, expected) => JSON.stringify(found) == JSON.stringify(expected) ||
    console.log(what + ": found " + JSON.stringify(found) + ", expected " + JSON.stringify(expected));
Object.assign(globalThis, {devicePixelRatio: 1, innerWidth: 800, innerHeight: 600, addEventListener() {},
    document: {createElement: element, getElementById: id => byName[id] ??= element()},
    getComputedStyle: () => ({getPropertyValue: () => ""}), requestAnimationFrame: f => f()});
eval(data + code + `
const [loss] = data.panels;
function numbers() {
    calls.length = 0;
    draw(loss);
    return calls.filter(call => call[0] == "fillText" && call[3] == 229).map(call => call[1]);
}
expect("ticks", numbers(), ["0", "1", "2"]);
expect("bands", calls.filter(([name]) => name == "fill").length, 3); // to the NaN, an empty rest, and the other group
loss.canvas.onmousemove({offsetX: 376, clientX: 0, clientY: 0});
loss.canvas.onmousedown({preventDefault() {}});
loss.canvas.onmousemove({offsetX: 214, clientX: 0, clientY: 0});
loss.canvas.onmouseup();
expect("range", vertical(loss, zoom).map(y => +y.toFixed(4)), [3.425, 5.075]);
byName.axis.onchange({target: {value: "tokens"}});
expect("tokens", numbers().at(-1), "4000");`);
END
    )"
else
    skip node 1 "the page's script"
fi

# ---- pictures

if python3 -c 'import matplotlib' 2>/dev/null; then
    report "a picture: titles, legend, band, lines of HellaSwag, whole ticks; the same run gives the same bytes" "$(
        plot sweep/* -o sweep.svg
        plot tiny scored -o two.svg --against time
        plot tiny scored -o again.svg --against time
        same two.svg again.svg
        says sweep.svg ">lowest to highest seed<"
        says sweep.svg 'fill-opacity: 0.2"'
        lacks sweep.svg ">1.5<|HellaSwag"
        for text in "training loss" "HellaSwag accuracy" "GPT-2 124M: 0.2945" "training time in seconds" \
            "model l4h4c128, learning-rate 0.001"; do
            says two.svg ">$text<"
        done
    )"
else
    skip python3-matplotlib 1 pictures
fi

# ---- errors

# stops STATUS WORDS ARGUMENT...: plot.py ends with the status, and with a sentence that has these words
stops() {
    report "an error for ${*:3}" "$(
        "$root/scripts/plot.py" "${@:3}" >/dev/null 2>"$err"
        equal $? "$1"
        grep -qE "^plot.py: .*$2" "$err" || echo "expected /$2/, found: $(tail -n 1 "$err")"
    )"
}
cp -r tiny broken && sed -i '2s/.*/{"step":1,"loss":5/' broken/metrics.jsonl
stops 2 "line 2 of broken/metrics.jsonl is not a JSON object with a step; delete the line" broken -o x.html
stops 2 "no run has the field 'accuracy'; the fields are val_loss, loss" tiny -o x.html --panels loss,accuracy
stops 1 "could not write nowhere/x.html: No such file or directory" tiny -o nowhere/x.html
report "an error writes nothing" "$(! compgen -G "x.*")"
end_tests

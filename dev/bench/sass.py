#!/usr/bin/python3
"""Simulates the machine code of the attention kernels cycle by cycle, and writes how busy they keep the tensor cores.

    dev/bench/sass.py [--show]      rewrites dev/results/attention_sass.json; --show prints the loops that it found
    dev/bench/sass.py --check       one line if the file is older than llmc/attention.cuh; needs no nvcc

dev/bench/roofline.h reads the file, so a machine without nvcc predicts too. It needs nvcc, g++ and cuobjdump, which
scripts/setup.sh test puts into build/cuda_tools. Two minutes.

Kernels   llmc/attention.cuh compiled for each architecture; the instances of TensorTiles. A C++ program, compiled with
          the emulator's headers, prints their tile sizes and shared memory.
Code      cuobjdump lists an instruction with its 128 bits. Bits 105 to 125 are the control code: stall cycles (4 bits),
          yield (1), write barrier (3), read barrier (3), mask of barriers to wait for (6).
Path      The instructions that a warp executes for one tile without a mask: the largest loop with HMMA, without the
          blocks that only mask (FSEL with -INF). An inner loop runs as often as the tile's HMMA need; of several inner
          loops the one without a mask runs.
Machine   A multiprocessor: four schedulers, each issues one instruction a cycle. A warp waits for its stall count, for
          its barriers, for the pipe of the instruction, and at BAR.SYNC for its block. Shared memory is one queue.
          Registers and shared memory give the number of blocks. Global memory always arrives in time.
Result    HMMA cycles over all cycles, for three rules of choosing among ready warps: the same warp first, in turns,
          the oldest first. The file has the mean.
Left out  The first and last instructions of a block, masks, bank conflicts, the instruction cache.
"""
import argparse
import collections
import glob
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

SOURCE, RESULT = "llmc/attention.cuh", "dev/results/attention_sass.json"
SCHEDULERS, WARPS_OF_BLOCK, REGISTERS = 4, 4, 65536

# Architecture: code that it runs, cycles of a scheduler for an HMMA.16816 (4096 FLOPs), for an FP32 and for an integer
# instruction of a warp, KiB of shared memory for all blocks. HMMA: published dense bf16 rate / multiprocessors / clock
# / 4. On sm_90 mma.sync reaches 2/3 of wgmma's rate (FlashAttention-2 peaks at 0.6 of it). On sm_100 mma.sync's rate is
# not published: A100's is assumed. The RTX cards have half rate with fp32 sums.
Machine = collections.namedtuple("Machine", "code hmma fp32 integer shared_kib")
MACHINES = {
    "sm_80": Machine(80, 8, 2, 2, 164),
    "sm_89": Machine(80, 32, 1, 2, 100),
    "sm_90": Machine(90, 6, 1, 2, 228),
    "sm_100": Machine(100, 8, 1, 2, 228),
    "sm_120": Machine(120, 32, 1, 1, 100),
}
SPECIAL, LDSM, COPY, WORD = 8, 4, 4, 1  # cycles: MUFU of a scheduler; of shared memory: LDSM.x4, LDGSTS, a word a lane
LATENCY = {"special": 22, "matrix": 30, "word": 24, "copy": 40}
QUEUE = 32     # cycles of work that shared memory takes in advance
BARRIER = 20   # cycles from the last warp's BAR.SYNC on
TILES = 16     # tiles a warp in a simulation
HEAD_SIZE = 64  # GPT-2's; other head sizes are taken to be as busy

PRODUCTS = {"forward": 2, "dkv": 4, "dq": 3}  # GEMMs of a tile

TILE_PROGRAM = r"""
#include "llmc/attention.cuh"
#include <cstdio>
template <class Tiles> void show(const char *kernel, int shared) {
    printf("%s %d %d %d %d %d\n", kernel, Tiles::WIDTH, Tiles::OWN, Tiles::OTHER, Tiles::WARP_ROWS, shared);
}
int main() {
    AttentionShape s = {1024, 1, HEAD_SIZE, true, 1};
    attention_with_tiles<bf16, false>(s, false, 1 << 20, [](auto tiles) {
        using Tiles = decltype(tiles);
        show<Tiles>("forward", attention_forward_shared<Tiles>());
    });
    attention_with_tiles<bf16, true>(s, false, 1 << 20, [](auto tiles) {
        using Tiles = decltype(tiles);
        show<Tiles>("dkv", attention_dkv_shared<Tiles>());
        show<Tiles>("dq", attention_dq_shared<Tiles>());
    });
}
"""


def stop(sentence):
    sys.exit(f"sass.py: {sentence}")


# ---- machine code

Instruction = collections.namedtuple("Instruction", "address text stall writes reads waits")


def run(command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        stop(f"{' '.join(command)}: {done.stderr.strip()[-2000:]}")
    return done.stdout


def instructions(listing):
    """{mangled name: [Instruction]} of cuobjdump -sass"""
    code, kernel, first = {}, None, None
    for line in listing.splitlines():
        name = re.search(r"Function : (\S+)", line)
        low = re.match(r"\s+/\*([0-9a-f]{4,})\*/\s+(.*?);\s+/\* 0x[0-9a-f]{16} \*/", line)
        high = re.match(r"\s+/\* 0x([0-9a-f]{16}) \*/", line)
        if name:
            kernel = code.setdefault(name.group(1), [])
        elif low:
            first = (int(low.group(1), 16), low.group(2).strip())
        elif high and first:
            control = int(high.group(1), 16) >> 41
            kernel.append(Instruction(*first, control & 15, control >> 5 & 7, control >> 8 & 7, control >> 11 & 63))
            first = None
    return code


def pipe_of(text):
    """the pipe of an instruction; None: only an issue slot"""
    name = re.sub(r"^@!?U?P\w+\s+", "", text).split()[0].split(".")[0]
    if name == "HMMA":
        return "tensor"
    if name == "MUFU":
        return "special"
    if name == "LDSM":
        return "matrix"
    if name in ("LDS", "STS", "SHFL"):
        return "word"
    if name in ("LDGSTS", "LDG", "STG"):
        return "copy"
    if name in ("FFMA", "FMUL", "FADD"):
        return "fp32"
    if name.startswith("IMAD"):
        return "multiply"
    uniform = name.startswith("U") and name != "UNPACK"
    free = ("BRA", "BSSY", "BSYNC", "NOP", "BAR", "WARPSYNC", "DEPBAR", "LDGDEPBAR", "EXIT", "LDC", "S2R", "R2UR")
    return None if uniform or name in free else "integer"


# ---- the path of a tile without a mask

def branches(code):
    """{index of a branch: index of its target}"""
    at = {instruction.address: i for i, instruction in enumerate(code)}
    found = {}
    for i, instruction in enumerate(code):
        target = re.search(r"\bU?BRA(?:\.\w+)*\s+.*?(0x[0-9a-f]+)$", instruction.text)
        if target and "BRA.DIV" not in instruction.text and int(target.group(1), 16) in at:
            found[i] = at[int(target.group(1), 16)]
    return found


def count(code, begin, end, *words):
    """instructions of [begin, end] that have all the words"""
    return sum(all(word in code[i].text for word in words) for i in range(begin, end + 1))


def multiplies(code, begin, end):
    return count(code, begin, end, "HMMA")


def masks(code, begin, end):
    return count(code, begin, end, "FSEL", "INF") >= 8


def loops(code):
    """[(first, last)] of the loops with HMMA, the largest first"""
    found = {(to, i) for i, to in branches(code).items() if to < i and multiplies(code, to, i)}
    return sorted(found, key=lambda loop: loop[0] - loop[1])


def executed(code, begin, end):
    """indices from begin to end; a forward branch is taken if it is unconditional or jumps over a mask without HMMA"""
    jumps, path, i = branches(code), [], begin
    while i <= end:
        path.append(i)
        to = jumps.get(i, 0)
        mask = to > i and masks(code, i + 1, to - 1) and not multiplies(code, i + 1, to - 1)
        i = to if i < to <= end + 1 and (mask or not code[i].text.startswith("@")) else i + 1
    return path


def tile_path(code, wanted):
    """Indices for one tile of `wanted` HMMA. Stops if the loops do not give that number."""
    every = loops(code)
    if not every:
        stop("a kernel of TensorTiles has no loop with HMMA: its code is not understood")
    outermost = [a for a in every if not any(b != a and b[0] <= a[0] and a[1] <= b[1] for b in every)]
    # of loops beside each other the ones without a mask run longest
    outer = next((a for a in outermost if multiplies(code, *a) and not masks(code, *a)), outermost[0])
    inside = [a for a in every if a != outer and outer[0] <= a[0] and a[1] <= outer[1]]
    plain = [a for a in inside if not masks(code, *a)]
    inner = (plain or inside or [None])[0]
    path = executed(code, *outer)
    if inner:
        others = [a for a in inside if a != inner and not inner[0] <= a[0] <= inner[1]]
        path = [i for i in path if not any(a[0] <= i <= a[1] for a in others)]
        before = [i for i in path if i < inner[0]]
        after = [i for i in path if i > inner[1]]
        body = executed(code, *inner)
        once = sum("HMMA" in code[i].text for i in before + after)
        each = sum("HMMA" in code[i].text for i in body)
        path = before + body * max(1, round((wanted - once) / each)) + after
    found = sum("HMMA" in code[i].text for i in path)
    if found % wanted:  # a loop may be unrolled over several tiles
        stop(f"a tile has {wanted} HMMA, but its path in the machine code has {found}")
    return path, found // wanted


# ---- the machine

class Warp:
    def __init__(self, number, block):
        self.number, self.block, self.at, self.tiles, self.waits = number, block, 0, 0, False
        self.ready = block * 200 + number * 7  # blocks start apart
        self.barriers = [0] * 6
        self.ends = []


def orders(rule, last, n):
    """ready warps of a scheduler, in the order of choice"""
    if rule == "same":
        return [last, *(i for i in range(n) if i != last)]
    if rule == "turns":
        return [(last + 1 + i) % n for i in range(n)]
    return list(range(n))


class Multiprocessor:
    def __init__(self, machine, code, path, blocks):
        self.steps = [(code[i], pipe_of(code[i].text), "BAR.SYNC" in code[i].text) for i in path]
        self.cost = {"tensor": machine.hmma, "special": SPECIAL, "fp32": machine.fp32, "integer": machine.integer,
                     "multiply": machine.integer}
        self.warps = [Warp(i % WARPS_OF_BLOCK, i // WARPS_OF_BLOCK) for i in range(blocks * WARPS_OF_BLOCK)]
        self.of_scheduler = [[w for w in self.warps if w.number % SCHEDULERS == s] for s in range(SCHEDULERS)]
        self.pipes = [collections.defaultdict(int) for _ in range(SCHEDULERS)]
        self.shared = 0  # cycle from which shared memory is idle

    def earliest(self, warp, pipes):
        """the first cycle in which the warp's instruction can issue, as far as is known now"""
        instruction, pipe, _ = self.steps[warp.at]
        cycle = max(warp.ready, *(warp.barriers[k] if instruction.waits >> k & 1 else 0 for k in range(6)))
        if pipe in self.cost:
            return max(cycle, pipes[pipe])
        return max(cycle, pipes["queue"], self.shared - QUEUE) if pipe else cycle

    def issue(self, warp, pipes, now):
        instruction, pipe, barrier = self.steps[warp.at]
        done = now + instruction.stall
        read = now + 10  # operands of an instruction on a slow pipe
        if pipe in self.cost:
            pipes[pipe] = now + self.cost[pipe]
            done = now + LATENCY["special"] if pipe == "special" else done
        elif pipe:
            self.shared = max(self.shared, now) + {"matrix": LDSM, "copy": COPY, "word": WORD}[pipe]
            pipes["queue"] = now + 2
            done = self.shared + LATENCY[pipe]
            read = self.shared + 10 if pipe == "copy" else read
        for which, cycle in ((instruction.writes, done), (instruction.reads, read)):
            if which < 6:
                warp.barriers[which] = max(warp.barriers[which], cycle)
        warp.ready = now + max(instruction.stall, 1)
        warp.at += 1
        if barrier:
            self.meet(warp, now)
        if warp.at == len(self.steps):
            warp.at, warp.tiles = 0, warp.tiles + 1
            warp.ends.append(now)

    def meet(self, warp, now):
        warp.waits = True
        mates = [w for w in self.warps if w.block == warp.block]
        if all(w.waits or w.tiles >= TILES for w in mates):
            for mate in mates:
                mate.waits, mate.ready = False, max(mate.ready, now + BARRIER)

    def simulate(self, rule):
        """cycles for a tile of every warp, between the first and the last quarter of all tiles"""
        now, last = 0, [0] * SCHEDULERS
        while any(w.tiles < TILES for w in self.warps):
            soonest = None
            for s, warps in enumerate(self.of_scheduler):
                issued = False
                for i in orders(rule, last[s], len(warps)):
                    if warps[i].waits or warps[i].tiles >= TILES:
                        continue
                    cycle = self.earliest(warps[i], self.pipes[s])
                    if cycle <= now:
                        self.issue(warps[i], self.pipes[s], now)
                        last[s], issued = i, True
                        break
                    soonest = cycle if soonest is None else min(soonest, cycle)
                if issued:
                    soonest = now + 1
            now = max(now + 1, soonest or 0)
        ends = sorted(end for w in self.warps for end in w.ends)
        first, last_one = len(ends) // 4, len(ends) * 3 // 4
        return (ends[last_one] - ends[first]) * len(self.warps) / (last_one - first)


def busy(machine, code, path, blocks):
    """share of the cycles in which a tensor core works, for each rule"""
    work = machine.hmma * blocks * WARPS_OF_BLOCK / SCHEDULERS * sum("HMMA" in code[i].text for i in path)
    return [work / Multiprocessor(machine, code, path, blocks).simulate(rule) for rule in ("same", "turns", "oldest")]


# ---- all kernels

def tile_shapes(folder):
    """[(kernel, head size, own rows, other rows, rows of a warp, bytes of shared memory)]"""
    source = os.path.join(folder, "tiles.cpp")
    with open(source, "w", encoding="utf-8") as file:
        file.write(TILE_PROGRAM)
    run([os.environ.get("CXX", "g++"), "-std=c++20", "-D_GNU_SOURCE", "-DPRECISION_BF16", "-Idev/emulator", "-I.", "-O0",
         "-w", "-march=native", f"-DHEAD_SIZE={HEAD_SIZE}", source, "-o", folder + "/tiles"])
    rows = [line.split() for line in run([folder + "/tiles"]).splitlines()]
    return [(row[0], *map(int, row[1:])) for row in rows]


def compile_for(code, folder):
    """({name: instructions}, {name: registers}) of the kernels for sm_`code`"""
    source, cubin = os.path.join(folder, "attention.cu"), os.path.join(folder, f"{code}.cubin")
    with open(source, "w", encoding="utf-8") as file:
        file.write(f'#include "{SOURCE}"\n')
    run(["nvcc", "-x", "cu", "-std=c++20", "-D_GNU_SOURCE", "-I.", "-DPRECISION_BF16", "-O3", "-gencode",
         f"arch=compute_{code},code=sm_{code}", "-cubin", source, "-o", cubin])
    usage = re.findall(r"Function (\S+?):\s+REG:(\d+)", run(["cuobjdump", "--dump-resource-usage", cubin]))
    return instructions(run(["cuobjdump", "-sass", cubin])), {name: int(registers) for name, registers in usage}


def blocks_of(machine, registers, shared):
    """blocks that a multiprocessor holds; registers are given in units of 8 a thread, CUDA takes 1 KiB a block"""
    threads = 32 * WARPS_OF_BLOCK
    by_registers = REGISTERS // (threads * ((registers + 7) // 8 * 8))
    return max(1, min(by_registers, (machine.shared_kib << 10) // (shared + 1024)))


def measure(machine, code, registers, shape, show):
    """the entry of one kernel and head size"""
    kernel, head, own, other, rows, shared = shape
    pattern = rf"attention_{kernel}_kernel\w*TensorTilesILi{head}ELi{own}ELi{other}ELi{WARPS_OF_BLOCK}E"
    name = next((name for name in code if re.search(pattern, name)), None)
    if name is None:
        stop(f"no kernel of {SOURCE} matches {pattern}: was it renamed?")
    wanted = PRODUCTS[kernel] * (rows // 16) * (other // 8) * (head // 16)
    path, tiles = tile_path(code[name], wanted)
    blocks = blocks_of(machine, registers[name], shared)
    shares = busy(machine, code[name], path, blocks)
    if show:
        pipes = collections.Counter(pipe_of(code[name][i].text) or "none" for i in path)
        print(f"  {kernel} {head}: {len(path)} instructions for {tiles} tile(s), {dict(pipes)}; {registers[name]} "
              f"registers, {blocks} blocks; busy {' '.join(f'{s:.2f}' for s in shares)}")
    return {"kernel": kernel, "head_size": head, "own": own, "other": other, "blocks": blocks,
            "busy": round(sum(shares) / len(shares), 3)}


def source_hash():
    with open(SOURCE, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()[:16]


def check():
    """one line if the results are not those of the present source"""
    try:
        with open(RESULT, encoding="utf-8") as file:
            noted = json.load(file)["source"]
    except (OSError, ValueError, KeyError):
        stop(f"{RESULT} is missing or damaged: dev/bench/sass.py writes it, with nvcc")
    if noted != source_hash():
        print(f"note: {RESULT} is older than {SOURCE}: dev/bench/sass.py renews it, with nvcc")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
    if given.check:
        check()
        return
    tools = glob.glob("build/cuda_tools/lib/python*/site-packages/nvidia/*/bin")
    os.environ["PATH"] = os.pathsep.join([*map(os.path.abspath, tools), os.environ["PATH"]])
    for tool in ("nvcc", "cuobjdump"):
        if not shutil.which(tool):
            stop(f"there is no {tool}: scripts/setup.sh test installs cuobjdump beside an installed nvcc")
    with tempfile.TemporaryDirectory() as folder:
        shapes = tile_shapes(folder)
        compiled = {code: compile_for(code, folder) for code in sorted({m.code for m in MACHINES.values()})}
        entries = {}
        for name, machine in MACHINES.items():
            if given.show:
                print(name)
            code, registers = compiled[machine.code]
            kernels = [measure(machine, code, registers, shape, given.show) for shape in shapes]
            entries[name] = {"hmma_cycles": machine.hmma, "kernels": kernels}
    with open(RESULT, "w", encoding="utf-8") as file:
        json.dump({"source": source_hash(), "architectures": entries}, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""The hot loops of the CPU backend in the machine code of an object or a program that was compiled with -g.

    dev/test/hot_loops.py FILE REGISTER [bf16]      REGISTER: zmm or ymm, the widest of the target
                                                    bf16: gemm multiplies pairs of bf16

A hot loop is a loop of llmc/ under `#pragma omp simd`, or the loop over k of a function in TILES. Debugging information
gives each instruction its line, and the lines it is inlined into. So a loop is found wherever a compiler put it.
Each compiled copy of a hot loop must have a basic block that reads or writes memory with the widest registers, without
calls and without scalar arithmetic. The scalar rest of a vector loop is in other blocks, even if the loop is completely
unrolled. Only instructions of the loop's lines count: a block may hold code of the function around the loop.
Tiles must have the expected number of multiply-adds in a loop, or four times as many where gcc unrolls gemm_tile, and
spill at most one vector register for 12 of them: clang 14 for Zen 3 spills one of 12 sums in the loop that also packs
B.
Prints a line per hot loop, and then a line that begins with `trouble:` for each failure.
"""
import collections
import glob
import re
import subprocess
import sys

# function: FMAs of one iteration by register. The sums are GEMM_ROWS x GEMM_VECTORS, or TILE_M x 2 vectors
TILES = {
    "gemm_tile": {"zmm": 24, "ymm": 12},
    "tile_multiply": {"zmm": 16, "ymm": 8},
}
# every function with loops under the pragma, so that a lost pragma is noticed
HOT = {"activation_backward_row", "activation_row", "adamw_tile", "attention_backward_tile", "attention_decode_row",
       "attention_softmax", "attention_store",
       "classifier_gradient", "classifier_max", "classifier_sum", "cpu_embedding_forward", "cpu_muon_momentum",
       "cpu_muon_normalise", "cpu_muon_polynomial", "cpu_muon_weights", "cpu_position_embedding_forward",
       "embedding_add_row", "gradient_store", "layernorm_backward_row",
       "layernorm_row", "layernorm_statistics", "matmul_row", "moment_decode_block", "moment_encode_block",
       "residual_row", "sum_of_squares", "sum_of_squares_bf16", "tile_of", "tile_of_weights", "tile_round",
       "tile_store_weights"}
MPI = {"sum_add", "sum_store"}  # absent from a build without MPI
COPIES = ("memcpy", "memset", "memmove")  # calls that compilers put in place of whole loops

ARITHMETIC = r"v?(add|sub|mul|div|sqrt|max|min|fn?m(add|sub)(132|213|231)?)"
SCALAR = re.compile(ARITHMETIC + r"s[sdh]$")
FMA = re.compile(r"vfn?madd(132|213|231)p[sd]$|vdpbf16ps$")
NARROW = re.compile(r"(ss|sd)$|^v?mov[dq]$")  # instructions on one element of an xmm register

Loop = collections.namedtuple("Loop", "path first last function tile")
Instruction = collections.namedtuple("Instruction", "address name arguments lines")


def source_loops():
    """every hot loop, with the lines from its pragma to its end"""
    loops = []
    for path in sorted(glob.glob("llmc/**/*.h", recursive=True)):
        with open(path, encoding="utf-8") as file:
            lines = file.read().split("\n")
        function = ""
        for at, line in enumerate(lines):
            defined = re.match(r"(?:static inline|ALWAYS_INLINE)\b.*?(\w+)\(", line)
            function = defined[1] if defined else function
            tile = function in TILES and re.match(r"    for \(int k = 0;", line)
            if not (tile or "#pragma omp simd" in line) or function in TILES and not tile:
                continue
            last, depth, opened = at, 0, False
            while depth > 0 or not opened:
                last += 1 if opened or not tile else 0
                opened = opened or "{" in lines[last]
                depth += lines[last].count("{") - lines[last].count("}")
            loops.append(Loop(path, at + 1, last + 1, function, bool(tile)))
    return loops


def disassemble(path):
    """(symbol, instructions) of each function. Lines: (file, line) of the instruction and of the calls inlined there"""
    text = subprocess.run(["objdump", "-dlr", "--inlines", "--no-show-raw-insn", "-Mintel", path], check=True,
                          capture_output=True, text=True).stdout
    symbol, body, innermost, outer = "", [], None, []
    for line in text.split("\n"):
        if match := re.match(r" +([0-9a-f]+):\t(?:\{\w+\} |notrack |rep\w* |bnd |data16 )*(\S+)\s*(.*)", line):
            body.append(Instruction(int(match[1], 16), match[2], match[3], frozenset([innermost] + outer)))
            outer = []
        elif match := re.match(r"(inlined by )?(/.*):(\d+)( \(.*\))?$", line):
            place = (match[2][match[2].rfind("/llmc/") + 1:], int(match[3]))
            if match[1]:
                outer.append(place)
            else:
                innermost = place
        elif match := re.match(r"[0-9a-f]+ <(.*)>:$", line):
            if body:
                yield symbol, body
            symbol, body, innermost, outer = match[1], [], None, []
        elif (match := re.match(r"\s+[0-9a-f]+: R_\S+\s+(\S+)", line)) and body:
            body[-1] = body[-1]._replace(arguments=body[-1].arguments + " " + match[1])
    yield symbol, body


def blocks(body):
    """the basic blocks: runs of instructions that end at a jump or before the target of one"""
    at = {instruction.address: number for number, instruction in enumerate(body)}
    starts = {0, len(body)}
    for number, instruction in enumerate(body):
        if instruction.name[0] == "j":
            target = re.match(r"[0-9a-f]+", instruction.arguments)
            starts |= {number + 1, at.get(int(target[0], 16), 0) if target else 0}
    starts = sorted(starts)
    return [body[first:last] for first, last in zip(starts, starts[1:])]


class Counts:
    """what the instructions of a hot loop in one block are"""

    def __init__(self, instructions, register, framed):
        def count(fits):
            return sum(1 for i in instructions if fits(i))
        self.all = len(instructions)
        self.wide = count(lambda i: register in i.arguments and not NARROW.search(i.name))
        self.memory = count(lambda i: register in i.arguments and not NARROW.search(i.name) and
                            re.search(r"PTR \[(?!rip)", i.arguments) and "broadcast" not in i.name)
        self.scalar = count(lambda i: SCALAR.match(i.name))
        self.fma = count(lambda i: register in i.arguments and FMA.match(i.name))
        self.pairs = count(lambda i: register in i.arguments and i.name == "vdpbf16ps")
        self.calls = [re.sub(r".*[ <]([A-Za-z_]\w*).*", r"\1", i.arguments) for i in instructions
                      if i.name.startswith("call")]
        self.copies = [call for call in self.calls if call.strip("_").replace("_chk", "") in COPIES]
        stack = r"\S+ PTR \[r(sp|bp)\b.*\]," if framed else r"\S+ PTR \[rsp\b.*\],"
        self.spills = count(lambda i: re.match(stack + r"[xyz]mm", i.arguments))

    def is_vector(self):
        if self.scalar > 0 or len(self.calls) > len(self.copies):
            return False
        return bool(self.copies) or self.wide > 0 and self.memory > 0


def main():
    path, register = sys.argv[1:3]
    loops = source_loops()
    by_line = collections.defaultdict(list)
    for loop in loops:
        for line in range(loop.first, loop.last + 1):
            by_line[loop.path, line].append(loop)
    found = collections.defaultdict(list)  # loop: [(symbol, [Counts])]
    for symbol, body in disassemble(path):
        framed = any(i.name == "mov" and i.arguments == "rbp,rsp" for i in body[:8])
        counts = collections.defaultdict(list)
        for block in blocks(body):
            of_loop = collections.defaultdict(list)
            for instruction in block:
                for loop in {loop for line in instruction.lines for loop in by_line[line]}:
                    of_loop[loop].append(instruction)
            for loop, instructions in of_loop.items():
                counts[loop].append(Counts(block if loop.tile else instructions, register, framed))
        for loop, of_blocks in counts.items():
            if sum(c.all for c in of_blocks) < 4:  # an address, computed far from its loop
                continue
            found[loop].append((symbol, of_blocks))
    print(f"{'loop':52}{'copies':>7}{'wide':>6}{'FMA':>5}{'spills':>7}")
    functions = {loop.function for loop in loops} - MPI
    troubles = [f"{function} has no hot loop, but is in HOT or TILES"
                for function in sorted((HOT | set(TILES)) - functions)]
    troubles += [f"{function} has a hot loop, but is not in HOT"
                 for function in sorted(functions - HOT - set(TILES))]
    for loop in loops:
        where = f"{loop.path[5:]}:{loop.first} {loop.function}"
        best = []
        for symbol, of_blocks in found[loop]:
            good = [c for c in of_blocks if c.is_vector() and (c.fma >= 2 or not loop.tile)]
            best += good
            if not good:
                c = max(of_blocks, key=lambda c: (c.scalar, len(c.calls), c.wide))
                troubles.append(f"{where} in {symbol}: {c.wide} instructions on {register}, {c.scalar} scalar ones, "
                                f"calls: {' '.join(c.calls) or 'none'}")
        if not found[loop] and loop.function not in MPI:
            troubles.append(f"{where}: no such loop")
        if loop.tile:
            expected = TILES[loop.function][register]
            expected *= 4 if loop.function == "gemm_tile" and "/gcc" in path else 1  # UNROLL_4
            if best and not any(c.fma == expected for c in best):
                troubles.append(f"{where}: no loop of {expected} multiply-adds: {[c.fma for c in best]}")
            if best and "bf16" in sys.argv and loop.function == "gemm_tile" and not any(c.pairs == c.fma for c in best):
                troubles.append(f"{where}: no loop multiplies pairs of bf16")
            if any(c.spills > c.fma / 12 for c in best):
                spilled = [(c.spills, c.fma) for c in best if c.spills]
                troubles.append(f"{where}: vector registers are spilled: {spilled}")
        if best:
            print(f"{where:52}{len(found[loop]):7}{max(c.wide for c in best):6}{max(c.fma for c in best):5}"
                  f"{max(c.spills for c in best):7}")
    for trouble in troubles:
        print(f"trouble: {trouble}")


main()

"""What a compiler makes of the kernels, for chips that need not be here.

    python -m kernels.aot                    every chip, kernel and type
    python -m kernels.aot --chip 9.0 --type bf16 --heads 64 64

Compiles each kernel as that chip would run it (see `kernels.sizes`) and
prints its registers a thread, the bytes a thread spills to memory when the
registers don't suffice, the shared memory of a program, and the seconds of
computing it took. The last line is the same as JSON. Needs Triton and no GPU.

Spills: in fp32 the products are "tf32x3", whose operands are two registers
for one, so the state pass spills, and is meant for checks rather than for
speed. In bf16 and fp16 it spills a few bytes on 8.0: there a product loads
both its tiles into registers, beside S and the sums, and two chunks at a
time are on their way. On 9.0 it reads the tiles from shared memory.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile

import torch

CHIPS = "7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "12.0"
TYPES = {
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
}
# bytes of shared memory that a program may have
ROOM = {"7.5": 64, "8.0": 163, "8.6": 99, "8.9": 99}
ROOM |= {"9.0": 227, "10.0": 227, "12.0": 99}
IN_TYPE = {"q", "k", "v", "beta", "out", "solve", "scores"}
IN_FP32 = {"g", "factors", "left", "initial", "final"}


def kernels_of(chip, dtype, dk, dv):
    """Yield (kernel, its constants and launch options) as `chip` uses them."""
    from kernels.chunk import chunk_local_kernel, chunk_state_kernel
    from kernels.launch import triton_type
    from kernels.recurrent import recurrent_kernel
    from kernels.sizes import chunk_sizes, recurrent_sizes

    sizes = recurrent_sizes(dk, dv)
    yield recurrent_kernel, {"NORM": True, "tables": None} | sizes
    capability = tuple(map(int, chip.split(".")))
    chunked = chunk_sizes(capability, dtype, dk, dv)
    if chunked:
        dot = {"DOT": triton_type(dtype)}
        yield chunk_local_kernel, {"NORM": True} | dot | chunked[0]
        yield chunk_state_kernel, dot | chunked[1]


def signature(kernel, dtype, constants):
    """-> argument types for the compiler, which are multiples of 16."""
    types, aligned = {}, {}
    for i, name in enumerate(kernel.arg_names):
        if name in constants:
            types[name] = "constexpr"
            continue
        if name in IN_TYPE:
            types[name] = f"*{dtype}"
        elif name in IN_FP32:
            types[name] = "*fp32"
        elif name in ("sequences", "chunks"):
            types[name] = "*i32"
        else:
            types[name] = "fp32" if name == "scale" else "i32"
        # what Triton finds out by itself when it launches
        strides = re.fullmatch(r"[qkv]_(row|token)|d[kv]", name)
        if types[name][0] == "*" or strides:
            aligned[(i,)] = [["tt.divisibility", 16]]
    return types, aligned


def compile_kernel(kernel, chip, dtype, settings):
    """Compile one kernel -> a dict of what it needs."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    options = {k: settings[k] for k in ("num_warps", "num_stages")}
    constants = {k: v for k, v in settings.items() if k not in options}
    types, aligned = signature(kernel, dtype, constants)
    source = ASTSource(kernel, types, constants, aligned)
    target = GPUTarget("cuda", int(chip.replace(".", "")), 32)
    start = sum(os.times()[:4])  # the assembler is a process of its own
    compiled = triton.compile(
        source, target, options | {"enable_fp_fusion": True}
    )
    seconds = sum(os.times()[:4]) - start
    registers, spilled = assembler_report(compiled.asm["ptx"], chip)
    return {
        "chip": chip,
        "kernel": kernel.__name__,
        "type": dtype,
        "registers": registers,
        "spilled": spilled,
        "shared": compiled.metadata.shared,
        "seconds": round(seconds, 1),
    }


def assembler_report(ptx, chip):
    """A kernel's PTX -> (registers a thread, bytes spilled a thread).

    Triton keeps neither without a GPU, so that its assembler is asked.
    """
    from triton import knobs

    blackwell = float(chip) >= 10
    tool = knobs.nvidia.ptxas_blackwell if blackwell else knobs.nvidia.ptxas
    arch = re.search(r"\.target (\w+)", ptx)[1]
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "kernel.ptx")
        with open(path, "w") as file:
            file.write(ptx)
        command = [tool.path, "-v", f"--gpu-name={arch}", path, "-o", path]
        run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode:
        raise RuntimeError(run.stderr)
    registers = re.search(r"Used (\d+) registers", run.stderr)[1]
    spilled = re.search(r"(\d+) bytes spill stores", run.stderr)[1]
    return int(registers), int(spilled)


def main():
    parser = argparse.ArgumentParser(
        description="Compile the kernels ahead of time."
    )
    parser.add_argument("--chip", nargs="+", default=CHIPS, choices=CHIPS)
    parser.add_argument("--type", nargs="+", default=TYPES, choices=TYPES)
    parser.add_argument(
        "--heads", nargs=2, type=int, default=(128, 128), metavar="D"
    )
    options = parser.parse_args()
    try:
        import triton
    except ImportError:
        sys.exit("Triton is not installed, and it is the compiler.")
    if triton.knobs.runtime.interpret:
        sys.exit("TRITON_INTERPRET is set: then nothing is compiled.")
    print(
        "chip  kernel              type  registers  spilled  shared  seconds"
    )
    rows = []
    for chip in options.chip:
        for dtype in options.type:
            if (chip, dtype) == ("7.5", "bf16"):
                continue  # there are no bf16 instructions
            for kernel, settings in kernels_of(
                chip, TYPES[dtype], *options.heads
            ):
                row = compile_kernel(kernel, chip, dtype, settings)
                rows.append(row)
                print(
                    "{chip:4}  {kernel:18}  {type:4}  {registers:9}  "
                    "{spilled:7}  {shared:6}  {seconds:7}".format(**row),
                    flush=True,
                )
    print(json.dumps(rows))


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Compiles the attention kernels for one card and checks what came out: no register spilt, no stack, and as many
tensor-core instructions as the tiles have products.

    sass.py NVCC SOURCE_FOLDER ARCHITECTURE

Counts in the machine code itself, since cuobjdump is not everywhere: from sm_80 to sm_120 an instruction is 16 bytes
whose lowest 12 bits are its operation. Exit 0: as it should be; 1: not.
"""
import re
import struct
import subprocess
import sys
import tempfile

HMMA, LOCAL_LOAD, LOCAL_STORE = 0x23C, 0x983, 0x387


def sections(elf):
    """Names and contents of the sections of a 64-bit ELF file."""
    table, = struct.unpack_from("<Q", elf, 0x28)
    size, count, names = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", elf, table + i * size) for i in range(count)]
    base = headers[names][4]
    for name, _, _, _, offset, length in headers:
        end = elf.index(b"\0", base + name)
        yield elf[base + name:end].decode(), elf[offset:offset + length]


def operations(code):
    counts = {}
    for i in range(0, len(code) - 15, 16):
        operation = struct.unpack_from("<H", code, i)[0] & 0xFFF
        counts[operation] = counts.get(operation, 0) + 1
    return counts


def products(kernel, width):
    """mma.m16n8k16 in the loop of a kernel for 16-bit types: [16, step] by [step, width], and so on."""
    step = {"attention_forward": 64 if width <= 128 else 32,
            "query_gradients": 32,
            "key_gradients": 32 if width <= 128 else 16}[kernel]
    columns = width // 2 if kernel == "key_gradients" and width > 128 else width
    by_rows = width // 16 * (step // 8)
    by_columns = step // 16 * (columns // 8)
    return {"attention_forward": by_rows + by_columns,
            "query_gradients": 2 * by_rows + by_columns,
            "key_gradients": 2 * by_rows + 2 * by_columns}[kernel]


def compile_kernels(nvcc, source, architecture):
    with tempfile.NamedTemporaryFile(suffix=".cubin") as cubin:
        command = [nvcc, "-std=c++17", "-O3", "-I", sys.argv[2], "-arch=" + architecture, "-Xptxas", "-v", "-cubin",
                   "-o", cubin.name, source]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(done.stdout + done.stderr)
        return done.stdout + done.stderr, cubin.read()


def check(nvcc, source, architecture):
    log, elf = compile_kernels(nvcc, source, architecture)
    faults = []
    for text in re.findall(r"Function properties for (\S+)\n\s*(.*)", log):
        if text[1] != "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads":
            faults.append("%s: %s" % text)
    seen = 0
    for name, code in sections(elf):
        found = re.match(r"\.text\..*(attention_forward|query_gradients|key_gradients)I(f|6__half|13__nv_bfloat16)Li(\d+)E",
                         name)
        if not found:
            continue
        kernel, dtype, width = found[1], found[2], int(found[3])
        counts = operations(code)
        expected = 0 if dtype == "f" else products(kernel, width)
        if counts.get(HMMA, 0) != expected:
            faults.append("%s: %d tensor-core instructions, expected %d" % (name, counts.get(HMMA, 0), expected))
        if counts.get(LOCAL_LOAD, 0) + counts.get(LOCAL_STORE, 0) > 0:
            faults.append("%s: local memory is used" % name)
        seen += 1
    if seen == 0:
        faults.append("%s: no kernels found" % source)
    print("%s for %s: %d kernels, %d faults" % (source, architecture, seen, len(faults)))
    return faults


def check_rounding(nvcc, source, architecture):
    """What has to give the CPU's bytes has no product that is fused with a sum, or may be."""
    done = subprocess.run([nvcc, "-std=c++17", "-O3", "-I", sys.argv[2], "-arch=" + architecture, "-ptx", "-o", "-", source],
                          capture_output=True, text=True)
    fused = re.findall(r"\b(?:fma\.rn\.f32|mul\.f32)\b.*", done.stdout)
    if done.returncode != 0:
        sys.exit(done.stdout + done.stderr)
    print("%s for %s: %d products that are not rounded" % (source, architecture, len(fused)))
    return ["%s: %s" % (source, text) for text in fused]


def main():
    nvcc, folder, architecture = sys.argv[1:]
    faults = []
    for name in ("attention_forward.cu", "attention_backward.cu"):
        faults += check(nvcc, "%s/kernels/cuda/%s" % (folder, name), architecture)
    for name in ("update.cu", "adafactor.cu"):
        faults += check_rounding(nvcc, "%s/kernels/cuda/%s" % (folder, name), architecture)
    print("\n".join(faults))
    sys.exit(1 if faults else 0)


main()

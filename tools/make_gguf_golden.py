"""Make runtime/llm/tests/golden/types.gguf and types.safetensors: blocks of all quantised types.

    python3 tools/bench_prefill.py --install
    .venv-prefill/bin/python tools/make_gguf_golden.py -o runtime/llm/tests/golden
    .venv-prefill/bin/python tools/make_gguf_golden.py --check -o runtime/llm/tests/golden

types.safetensors has the dequantised numbers, by the gguf package of llama.cpp's own tools. Types
that the package can quantise have random normal numbers. The others, and MXFP4, have random bytes
with small finite scales, so that tests depend on every bit of a block. Both files have a tensor
`t.TYPE`, [2, 512], for each type; types.safetensors has it in float32.

Exit codes: 0 success, 1 the files differ from the output of the package (--check), 2 a package is
missing.
"""

import argparse
import sys
from pathlib import Path

try:
    import numpy as np
    from gguf import GGML_QUANT_SIZES, GGUFReader, GGUFWriter
    from gguf import GGMLQuantizationType as Type
    from gguf.quants import dequantize, quantize
    from safetensors.numpy import load_file, save_file
except ImportError as missing:
    print(
        f"make_gguf_golden: {missing}; install the packages listed in its first lines",
        file=sys.stderr,
    )
    sys.exit(2)

ROWS, COLUMNS = 2, 512
QUANTISED = [Type.F32, Type.F16, Type.BF16, Type.Q8_0, Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1]
SCALES = {
    Type.Q4_K: [0, 2],
    Type.Q5_K: [0, 2],
    Type.Q6_K: [208],
    Type.IQ4_NL: [0],
    Type.IQ4_XS: [0],
    Type.MXFP4: [],
}
"""Offsets of the float16 scales in a block, in bytes."""
EXPONENTS = {Type.MXFP4: 0}
"""Offset of the exponent of a power of two in a block, in bytes."""


def random_blocks(kind: Type, generator: np.random.Generator) -> np.ndarray:
    """Returns random bytes with valid scales, `[ROWS, bytes per row]`."""
    length, size = GGML_QUANT_SIZES[kind]
    blocks = generator.integers(0, 256, (ROWS * COLUMNS // length, size), dtype=np.uint8)
    for offset in SCALES[kind]:
        scales = generator.uniform(-0.02, 0.02, len(blocks)).astype("<f2")
        blocks[:, offset : offset + 2] = scales.view(np.uint8).reshape(-1, 2)
    if kind in EXPONENTS:
        exponents = generator.integers(118, 128, len(blocks), dtype=np.uint8)
        exponents[:3] = [0, 1, 2]  # The first two are below the normal numbers of float32.
        blocks[:, EXPONENTS[kind]] = exponents
    return blocks.reshape(ROWS, -1)


def make() -> dict[Type, np.ndarray]:
    """Makes the tensors as bytes, `[ROWS, bytes per row]`."""
    generator = np.random.default_rng(0)
    found = {}
    for kind in QUANTISED:
        numbers = generator.standard_normal((ROWS, COLUMNS), dtype=np.float32)
        found[kind] = quantize(numbers, kind).view(np.uint8).reshape(ROWS, -1)
    return found | {kind: random_blocks(kind, generator) for kind in SCALES}


def numbers(kind: Type, data: np.ndarray) -> np.ndarray:
    found = np.ascontiguousarray(dequantize(data, kind), dtype=np.float32)
    assert found.shape == (ROWS, COLUMNS) and np.isfinite(found).all(), kind
    return found


def write(folder: Path, tensors: dict[Type, np.ndarray]) -> None:
    writer = GGUFWriter(folder / "types.gguf", "golden")
    for kind, data in tensors.items():
        writer.add_tensor(f"t.{kind.name}", data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    save_file(
        {f"t.{kind.name}": numbers(kind, data) for kind, data in tensors.items()},
        folder / "types.safetensors",
    )


def check(folder: Path, tensors: dict[Type, np.ndarray]) -> bool:
    """Returns True if the files have these tensors, and the package reads the same numbers."""
    expected = load_file(folder / "types.safetensors")
    read = {tensor.name: tensor for tensor in GGUFReader(folder / "types.gguf").tensors}
    fine = read.keys() == expected.keys() == {f"t.{kind.name}" for kind in tensors}
    for kind, data in tensors.items():
        tensor = read[f"t.{kind.name}"]
        same = tensor.tensor_type == kind and tensor.shape.tolist() == [COLUMNS, ROWS]
        stored = np.ascontiguousarray(tensor.data).view(np.uint8).reshape(ROWS, -1)
        same = same and np.array_equal(stored, data)
        same = same and numbers(kind, stored).tobytes() == expected[tensor.name].tobytes()
        print(f"{tensor.name}: {data.nbytes} bytes, {'the same' if same else 'NOT THE SAME'}")
        fine &= same
    return fine


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "-o", dest="output", type=Path, required=True, metavar="DIR", help="folder of the two files"
    )
    parser.add_argument(
        "--check", action="store_true", help="compare with the existing files, and write nothing"
    )
    args = parser.parse_args()
    tensors = make()
    if not args.check:
        write(args.output, tensors)
    return 0 if check(args.output, tensors) else 1


if __name__ == "__main__":
    sys.exit(main())

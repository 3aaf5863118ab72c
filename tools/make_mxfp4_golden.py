"""Make runtime/llm/tests/golden/mxfp4: experts in MXFP4 as Hugging Face stores them.

    python3 tools/make_mxfp4_golden.py -o runtime/llm/tests/golden/mxfp4

model.safetensors has the bytes of three random experts, `..._blocks` [3, 6, 2, 16] and `..._scales`
[3, 6, 2], like a checkpoint of gpt-oss. golden.safetensors has their weights by transformers,
[3, 6, 64] in float32. Packages: those of tools/golden/requirements.txt. The same command gives the
same bytes.

Exit codes: 0 success, 2 a package is missing.
"""

import argparse
import sys
from pathlib import Path

try:
    import torch
    from safetensors.torch import save_file
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors
except ImportError as missing:
    print(f"make_mxfp4_golden: {missing}; install tools/golden/requirements.txt", file=sys.stderr)
    sys.exit(2)

NAME = "model.layers.0.mlp.experts.gate_up_proj"
EXPERTS, OUTPUTS, BLOCKS = 3, 6, 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="DIR")
    output = parser.parse_args().output
    output.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(0)

    def draw(low: int, high: int, shape: tuple[int, ...]) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=generator, dtype=torch.uint8)

    blocks = draw(0, 256, (EXPERTS, OUTPUTS, BLOCKS, 16))
    scales = draw(110, 131, (EXPERTS, OUTPUTS, BLOCKS))
    weights = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    stored = {f"{NAME}_blocks": blocks, f"{NAME}_scales": scales}
    save_file(stored, output / "model.safetensors")
    save_file({NAME: weights.transpose(1, 2).contiguous()}, output / "golden.safetensors")
    print(f"{output}: {EXPERTS} experts, {list(weights.shape)} numbers")


if __name__ == "__main__":
    main()

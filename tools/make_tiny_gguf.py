"""Make runtime/llm/tests/golden/gguf: tiny checkpoints as GGUF, as llama.cpp's converter does.

    python3 tools/bench_prefill.py --install
    golden=runtime/llm/tests/golden
    tiny=$(ls $golden/gguf | sed "s|\\(.*\\)\\.gguf|$golden/\\1|")
    .venv-prefill/bin/python tools/make_tiny_gguf.py -o $golden/gguf $tiny
    python3 tools/bench_serve.py --install
    .venv-prefill/bin/python tools/make_tiny_gguf.py --check $tiny

A GGUF file must compute the same as its checkpoint, so both have the golden numbers of
make_llm_golden.py. The conversion changes names of tensors and metadata. In Llama and models that
follow it, it moves the rows of queries and keys, so that the elements of rotary pairs are
neighbours instead of half a head apart. The factors of Llama 3's scaled rotary embeddings and of
longrope become tensors, and the experts of a layer become one tensor per part. 1 is added to
Gemma's weights of norms. Weights keep the precision of the checkpoint, except for biases and
weights of one dimension, which become float32.

GGUF has no key for Gemma's softmax scale, which llama.cpp derives from the model's size, and
llama.cpp ignores windows of Llama and Phi, and the chunks and temperatures of Llama 4; these files
have `attention.scale`, `attention.sliding_window`, `attention.temperature_scale` and
`attention.temperature_length`, because the models are not of any published size.

These checkpoints have no tokenizer (tokenizer.ggml.model is `none`). A byte-level BPE in
tokenizer.json would be converted (`gpt2`).

--check converts to temporary files instead, and compares the logits and the greedy continuations
of llama.cpp with those of transformers. Weights are in float32 there, because llama.cpp rounds
activations to the precision of the weights. Where llama.cpp ignores a key of the file, transformers
gets the value that llama.cpp assumes (ASSUMED).

Exit codes: 0 success, 1 the logits of llama.cpp differ (--check), 2 invalid input or a package is
missing.
"""

import argparse
import json
import math
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from fetching import Failed
from serving.llama_server import build_logits

try:
    import gguf
    import numpy as np
    import torch
    from gguf import GGMLQuantizationType as Type
    from safetensors.torch import load_file
except ImportError as missing:
    print(
        f"make_tiny_gguf: {missing}; install the packages by the command in its first lines",
        file=sys.stderr,
    )
    sys.exit(2)

ARCHITECTURES = {
    "LlamaForCausalLM": gguf.MODEL_ARCH.LLAMA,
    "Llama4ForCausalLM": gguf.MODEL_ARCH.LLAMA4,
    "MistralForCausalLM": gguf.MODEL_ARCH.LLAMA,
    "Ministral3ForCausalLM": gguf.MODEL_ARCH.MISTRAL3,
    "Qwen2ForCausalLM": gguf.MODEL_ARCH.QWEN2,
    "Qwen3ForCausalLM": gguf.MODEL_ARCH.QWEN3,
    "Qwen3MoeForCausalLM": gguf.MODEL_ARCH.QWEN3MOE,
    "MixtralForCausalLM": gguf.MODEL_ARCH.LLAMA,
    "Gemma2ForCausalLM": gguf.MODEL_ARCH.GEMMA2,
    "Gemma3ForCausalLM": gguf.MODEL_ARCH.GEMMA3,
    "GptOssForCausalLM": gguf.MODEL_ARCH.GPT_OSS,
    "Phi3ForCausalLM": gguf.MODEL_ARCH.PHI3,
    "GraniteForCausalLM": gguf.MODEL_ARCH.GRANITE,
    "SmolLM3ForCausalLM": gguf.MODEL_ARCH.SMOLLM3,
    "Olmo2ForCausalLM": gguf.MODEL_ARCH.OLMO2,
    "Olmo3ForCausalLM": gguf.MODEL_ARCH.OLMO2,
    "GlmForCausalLM": gguf.MODEL_ARCH.CHATGLM,
    "Glm4ForCausalLM": gguf.MODEL_ARCH.GLM4,
    "SeedOssForCausalLM": gguf.MODEL_ARCH.SEED_OSS,
    "Ernie4_5ForCausalLM": gguf.MODEL_ARCH.ERNIE4_5,
    "Exaone4ForCausalLM": gguf.MODEL_ARCH.EXAONE4,
}
INTERLEAVED = (
    gguf.MODEL_ARCH.LLAMA,
    gguf.MODEL_ARCH.MISTRAL3,
    gguf.MODEL_ARCH.GRANITE,
    gguf.MODEL_ARCH.SMOLLM3,
)
JOINED = (gguf.MODEL_ARCH.GPT_OSS, gguf.MODEL_ARCH.LLAMA4)
"""Architectures whose checkpoints have one tensor for all experts."""
FUSED = (gguf.MODEL_ARCH.CHATGLM,)
"""Architectures whose published files have one tensor for queries, keys and values."""
GEMMA = (gguf.MODEL_ARCH.GEMMA2, gguf.MODEL_ARCH.GEMMA3)
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
FILE_TYPES = {
    "float32": gguf.LlamaFileType.ALL_F32,
    "float16": gguf.LlamaFileType.MOSTLY_F16,
    "bfloat16": gguf.LlamaFileType.MOSTLY_BF16,
}
TOLERANCE, TOLERANCE_GELU = 1e-4, 2e-3
"""Largest differences of logits for --check, relative to the largest logit.

llama.cpp reads GELU from a table in float16.
"""
FULL = {"sliding_window": None}
ASSUMED = {
    "mistral-window": FULL,
    "phi3-window": FULL,
    "exaone4": FULL | {"layer_types": ["full_attention"] * 4},
    "gemma2": {"query_pre_attn_scalar": 16},
    "gemma3": {"query_pre_attn_scalar": 16},
    "llama4": {"attention_chunk_size": 8192, "floor_scale": 8192},
}
"""Values of config.json that llama.cpp assumes, of cases that have other ones."""


class InputError(Exception):
    """Error: a checkpoint cannot be converted; the exit code is 2."""


class Checkpoint:
    """Config and tensors in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.name = folder, folder.name
        try:
            self.config = json.loads((folder / "config.json").read_text())
            files = sorted(folder.glob("model*.safetensors"))
            self.tensors = {
                name: tensor for file in files for name, tensor in load_file(file).items()
            }
        except (OSError, ValueError) as error:
            raise InputError(f"{folder}: {error}; expected a checkpoint")
        [architecture] = self.config["architectures"]
        if architecture not in ARCHITECTURES:
            raise InputError(
                f"{folder}: {architecture}; expected one of {', '.join(ARCHITECTURES)}"
            )
        self.arch = ARCHITECTURES[architecture]
        self.dtype = self.config.get("dtype") or self.config["torch_dtype"]
        self.heads = self.config["num_attention_heads"]
        self.kv_heads = self.config["num_key_value_heads"]
        self.head_dim = self.config.get("head_dim") or self.config["hidden_size"] // self.heads
        rope = self.config.get("rope_parameters") or self.config.get("rope_scaling") or {}
        self.sliding_rope = rope.get("sliding_attention")
        rope = rope.get("full_attention", rope)
        self.rope = {"rope_theta": self.config.get("rope_theta"), "rope_type": "default"} | rope
        part = self.rope.get("partial_rotary_factor", 1.0)
        self.rotated = int(self.head_dim * part)

    def widen(self) -> None:
        """Converts the tensors to float32; add_tensors converts MXFP4 blocks."""
        self.dtype = "float32"
        for name, tensor in self.tensors.items():
            if tensor.dtype != torch.uint8:
                self.tensors[name] = tensor.float()


# Metadata.


def add_metadata(writer: gguf.GGUFWriter, checkpoint: Checkpoint) -> None:
    config, rope = checkpoint.config, checkpoint.rope
    writer.add_type("model")
    writer.add_name(checkpoint.name)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(
        config.get("intermediate_size_mlp") or config["intermediate_size"]
    )
    if "num_experts_per_tok" in config:
        add_experts(writer, checkpoint)
    writer.add_head_count(checkpoint.heads)
    writer.add_head_count_kv(checkpoint.kv_heads)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(rope["rope_theta"])
    if "head_dim" in config:
        writer.add_key_length(checkpoint.head_dim)
        writer.add_value_length(checkpoint.head_dim)
    if checkpoint.arch in INTERLEAVED or checkpoint.rotated != checkpoint.head_dim:
        writer.add_rope_dimension_count(checkpoint.rotated)
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    elif rope["rope_type"] == "yarn":
        add_yarn(writer, rope)
    elif rope["rope_type"] == "longrope":
        add_longrope(writer, checkpoint)
    elif rope["rope_type"] not in ("default", "llama3"):
        raise InputError(
            f"{checkpoint.folder}: rope_type {rope['rope_type']}; "
            "expected default, linear, llama3, yarn or longrope"
        )
    add_window(writer, checkpoint)
    if checkpoint.arch in GEMMA:
        add_gemma(writer, checkpoint)
    if checkpoint.arch == gguf.MODEL_ARCH.LLAMA4:
        writer.add_interleave_moe_layer_step(config["interleave_moe_layer_step"])
        writer.add_sliding_window(config["attention_chunk_size"])
        writer.add_attn_temperature_scale(config["attn_scale"])
        writer.add_attn_temperature_length(config["floor_scale"])
    if checkpoint.arch == gguf.MODEL_ARCH.GRANITE:
        writer.add_embedding_scale(config["embedding_multiplier"])
        writer.add_residual_scale(config["residual_multiplier"])
        writer.add_attention_scale(config["attention_multiplier"])
        writer.add_logit_scale(config["logits_scaling"])
    writer.add_file_type(FILE_TYPES[checkpoint.dtype])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)


def add_experts(writer: gguf.GGUFWriter, checkpoint: Checkpoint) -> None:
    config = checkpoint.config
    if (
        not config.get("norm_topk_prob", True)
        or config.get("decoder_sparse_step", 1) != 1
        or config.get("mlp_only_layers")
    ):
        raise InputError(
            f"{checkpoint.folder}: expected experts in every layer, with weights that sum to 1, "
            "because GGUF has no keys for other models"
        )
    writer.add_expert_count(config.get("num_local_experts") or config["num_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    if checkpoint.arch == gguf.MODEL_ARCH.QWEN3MOE:
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    elif checkpoint.arch in JOINED:
        writer.add_expert_feed_forward_length(config["intermediate_size"])


def add_window(writer: gguf.GGUFWriter, checkpoint: Checkpoint) -> None:
    """Writes the window; the layers that slide follow from the architecture."""
    config = checkpoint.config
    window = config.get("sliding_window") if config.get("use_sliding_window", True) else None
    if window is not None and "use_sliding_window" in config:
        raise InputError(f"{checkpoint.folder}: sliding_window {window}; expected none")
    if window is not None or checkpoint.arch == gguf.MODEL_ARCH.PHI3:
        writer.add_sliding_window(window or 0)


def add_gemma(writer: gguf.GGUFWriter, checkpoint: Checkpoint) -> None:
    config = checkpoint.config
    writer.add_attention_scale(config["query_pre_attn_scalar"] ** -0.5)
    if config["attn_logit_softcapping"]:
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
    if config["final_logit_softcapping"]:
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    if checkpoint.sliding_rope:
        writer.add_rope_freq_base_swa(checkpoint.sliding_rope["rope_theta"])


def add_longrope(writer: gguf.GGUFWriter, checkpoint: Checkpoint) -> None:
    """Writes the factors of longrope as tensors, and the factor of queries and keys."""
    rope = checkpoint.rope
    original = rope["original_max_position_embeddings"]
    scale = checkpoint.config["max_position_embeddings"] / original
    writer.add_rope_scaling_orig_ctx_len(original)
    writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(scale) / math.log(original)))
    for kind in ("long", "short"):
        factors = np.array(rope[f"{kind}_factor"], dtype=np.float32)
        writer.add_tensor(f"rope_factors_{kind}.weight", factors)


def add_tokenizer(writer: gguf.GGUFWriter, checkpoint: Checkpoint, pre: str) -> str:
    """Writes tokenizer.ggml.*, and returns the kind of the tokenizer."""
    path = checkpoint.folder / "tokenizer.json"
    model = "none"
    if path.exists():
        add_vocabulary(writer, checkpoint, json.loads(path.read_text()))
        writer.add_tokenizer_pre(pre)
        model = "gpt2"
    if model == "none" or checkpoint.arch == gguf.MODEL_ARCH.LLAMA:
        # In other architectures, the list of tokens has this length.
        writer.add_vocab_size(checkpoint.config["vocab_size"])
    writer.add_tokenizer_model(model)
    for name, add in [("bos", writer.add_bos_token_id), ("eos", writer.add_eos_token_id)]:
        if (token := checkpoint.config.get(f"{name}_token_id")) is not None:
            add(token)
    return model


def add_vocabulary(writer: gguf.GGUFWriter, checkpoint: Checkpoint, tokenizer: dict) -> None:
    """Writes the tokens, their types and the merges of a byte-level BPE."""
    model = tokenizer["model"]
    if model["type"] != "BPE" or "ByteLevel" not in json.dumps(
        [tokenizer["pre_tokenizer"], tokenizer["decoder"]]
    ):
        raise InputError(
            f"{checkpoint.folder}/tokenizer.json: {model['type']}; expected a byte-level BPE"
        )
    size = checkpoint.config["vocab_size"]
    tokens = [f"[PAD{number}]" for number in range(size)]
    types = [gguf.TokenType.UNUSED] * size
    for token, number in model["vocab"].items():
        tokens[number], types[number] = token, gguf.TokenType.NORMAL
    for added in tokenizer["added_tokens"]:
        kind = gguf.TokenType.CONTROL if added["special"] else gguf.TokenType.USER_DEFINED
        tokens[added["id"]], types[added["id"]] = added["content"], kind
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(
        [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
    )


def add_yarn(writer: gguf.GGUFWriter, rope: dict) -> None:
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(rope["factor"])
    writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if "beta_fast" in rope:
        writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
        writer.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])
    if "mscale_all_dim" in rope:
        writer.add_rope_scaling_yarn_log_mul(rope["mscale_all_dim"])
    if "llama_4_scaling_beta" in rope:
        writer.add_attn_temperature_scale(rope["llama_4_scaling_beta"])


# Tensors.


def interleave(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """Reorders the rows of each head: the rotary pair (i, i + half) becomes (2 i, 2 i + 1)."""
    halves = tensor.reshape(heads, 2, -1, *tensor.shape[1:])
    return halves.transpose(1, 2).reshape(tensor.shape)


def rope_factors(checkpoint: Checkpoint) -> np.ndarray:
    """Returns the divisors of the frequencies for rope_type llama3, `[head_dim / 2]`."""
    rope, found = checkpoint.rope, []
    low, high, factor = rope["low_freq_factor"], rope["high_freq_factor"], rope["factor"]
    for i in range(checkpoint.head_dim // 2):
        wavelength = 2 * math.pi * rope["rope_theta"] ** (2 * i / checkpoint.head_dim)
        turns = rope["original_max_position_embeddings"] / wavelength
        kept = min(max((turns - low) / (high - low), 0), 1)
        found.append(1 / (kept + (1 - kept) / factor))
    return np.array(found, dtype=np.float32)


def add_tensor(writer: gguf.GGUFWriter, name: str, tensor: torch.Tensor) -> None:
    """Writes a tensor; biases and those of one dimension become float32."""
    if tensor.dtype == torch.uint8:
        writer.add_tensor(name, tensor.contiguous().numpy(), raw_dtype=Type.MXFP4)
        return
    if tensor.dim() == 1 or name.endswith(".bias"):
        tensor = tensor.float()
    tensor = tensor.contiguous()
    if tensor.dtype == torch.bfloat16:
        writer.add_tensor(name, tensor.view(torch.uint8).numpy(), raw_dtype=Type.BF16)
    else:
        writer.add_tensor(name, tensor.numpy())


def stack_experts(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Joins the experts of a layer, for each part, to one tensor `[experts, outputs, inputs]`."""
    found, parts = {}, {}
    for name, tensor in tensors.items():
        if match := re.fullmatch(r"(.*\.experts)\.(\d+)\.(.*)", name):
            parts.setdefault(f"{match[1]}.{match[3]}", {})[int(match[2])] = tensor
        else:
            found[name] = tensor
    return found | {
        name: torch.stack([experts[i] for i in range(len(experts))])
        for name, experts in parts.items()
    }


def pack_blocks(blocks: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Joins the bytes of MXFP4 blocks, `[experts, outputs, bytes per row]`.

    A byte has weights that are half a block apart, in place of neighbours.
    """
    neighbours = torch.stack([blocks & 15, blocks >> 4], dim=-1).flatten(-2)
    first, second = neighbours.chunk(2, dim=-1)
    halves = first | (second << 4)
    return torch.cat([scales.unsqueeze(-1), halves], dim=-1).flatten(-2)


def split_experts(
    tensors: dict[str, torch.Tensor], arch: gguf.MODEL_ARCH
) -> dict[str, torch.Tensor]:
    """Splits joined experts into parts, `[experts, outputs, inputs]`.

    The outputs of gate and up alternate in gpt-oss, and are halves in Llama 4.
    """
    found = {}
    for name, tensor in tensors.items():
        if name.endswith("_scales"):
            continue
        if name.endswith("_blocks"):
            name = name.removesuffix("_blocks")
            tensor = pack_blocks(tensor, tensors[f"{name}_scales"])
        elif name.endswith((".gate_up_proj", ".down_proj")) and tensor.dim() == 3:
            tensor = tensor.transpose(1, 2)
        name, kind = (name[:-5], "bias") if name.endswith("_bias") else (name, "weight")
        if name.endswith("gate_up_proj"):
            for first, part in enumerate(["gate_proj", "up_proj"]):
                part = name.replace("gate_up_proj", part)
                if arch == gguf.MODEL_ARCH.LLAMA4:
                    found[f"{part}.{kind}"] = tensor.chunk(2, dim=1)[first]
                else:
                    found[f"{part}.{kind}"] = tensor[:, first::2]
        elif ".experts." in name:
            found[f"{name}.{kind}"] = tensor
        elif name.endswith("sinks"):
            found[f"{name}.weight"] = tensor
        else:
            found[name] = tensor
    return found


def fuse_inputs(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Joins the rows of queries, keys and values."""
    found = {}
    for name, tensor in tensors.items():
        if "self_attn.q_proj" in name:
            parts = [tensors[name.replace("q_proj", part)] for part in ("k_proj", "v_proj")]
            found[name.replace("q_proj", "qkv_proj")] = torch.cat([tensor, *parts])
        elif "self_attn.k_proj" not in name and "self_attn.v_proj" not in name:
            found[name] = tensor
    return found


def add_tensors(writer: gguf.GGUFWriter, checkpoint: Checkpoint) -> None:
    names = gguf.get_tensor_name_map(checkpoint.arch, checkpoint.config["num_hidden_layers"])
    if checkpoint.rope["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", rope_factors(checkpoint))
    tensors = stack_experts(checkpoint.tensors)
    if checkpoint.arch in JOINED:
        tensors = split_experts(tensors, checkpoint.arch)
    if checkpoint.arch in FUSED:
        tensors = fuse_inputs(tensors)
    for name, tensor in tensors.items():
        if tensor.dtype not in (DTYPES[checkpoint.dtype], torch.uint8):
            raise InputError(
                f"{checkpoint.folder}: {name} is {tensor.dtype}; expected {checkpoint.dtype}"
            )
        found = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if found is None:
            raise InputError(f"{checkpoint.folder}: {name}; expected a tensor with a name in GGUF")
        if tensor.dtype == torch.uint8 and checkpoint.dtype == "float32":
            tensor = torch.from_numpy(gguf.quants.dequantize(tensor.numpy(), Type.MXFP4))
        if checkpoint.arch in GEMMA and name.endswith("norm.weight"):
            tensor = tensor.float() + 1
        if checkpoint.arch in INTERLEAVED:
            for part, heads in [("q_proj", checkpoint.heads), ("k_proj", checkpoint.kv_heads)]:
                if part in name:
                    tensor = interleave(tensor, heads)
        add_tensor(writer, found, tensor)


def convert(checkpoint: Checkpoint, path: Path, pre: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[checkpoint.arch])
    add_metadata(writer, checkpoint)
    model = add_tokenizer(writer, checkpoint, pre)
    add_tensors(writer, checkpoint)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    print(f"{path}: {path.stat().st_size} bytes, {checkpoint.dtype}, tokenizer {model}")


# The check.


def read_logits(program: Path, model: Path, prompt: list[int], further: list[int]) -> np.ndarray:
    """Returns llama.cpp's logits after a prompt, and after each of the further tokens."""
    command = [program, model, len(prompt), *prompt, *further]
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE)
    if done.returncode != 0:
        raise Failed(f"{model.stem}: llama.cpp failed; expected logits")
    return np.array([line.split() for line in done.stdout.splitlines()], dtype=np.float32)


def check(checkpoint: Checkpoint, program: Path, pre: str) -> bool:
    """Returns True if llama.cpp's outputs equal those of transformers."""
    from make_llm_golden import expected, load

    golden = load_file(checkpoint.folder / "golden.safetensors")
    prompt, decode = golden["prompt"].tolist(), golden["decode_tokens"].tolist()
    if changes := ASSUMED.get(checkpoint.name, {}):
        golden = expected(load(checkpoint.folder, **changes), prompt, decode)
    path = program.parent / f"{checkpoint.name}.gguf"
    checkpoint.widen()
    convert(checkpoint, path, pre)
    found = read_logits(program, path, prompt, decode)
    wanted = torch.cat([golden["prefill"].unsqueeze(0), golden["decode"]]).numpy()
    worst = float(np.abs(found - wanted).max() / np.abs(wanted).max())
    greedy = golden["greedy"].tolist()
    best = read_logits(program, path, prompt, greedy[:-1]).argmax(axis=1)
    equal = int((best == greedy).sum())
    limit = TOLERANCE_GELU if checkpoint.arch in GEMMA else TOLERANCE
    changed = f" with {changes}" if changes else ""
    print(
        f"{checkpoint.name}{changed}: logits of llama.cpp differ by {worst:.1e}, relative to the "
        f"largest (expected at most {limit:g}); {equal} of {len(greedy)} greedy tokens are equal"
    )
    return worst <= limit and equal == len(greedy)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="checkpoints")
    parser.add_argument(
        "-o",
        dest="output",
        type=Path,
        metavar="DIR",
        help="folder of the GGUF files (required without --check)",
    )
    parser.add_argument(
        "--pre",
        default="gpt-2",
        metavar="NAME",
        help="value of tokenizer.ggml.pre, the pre-tokenizer",
    )
    parser.add_argument("--check", action="store_true", help="compare llama.cpp with transformers")
    args = parser.parse_args()
    if args.output is None and not args.check:
        parser.error("expected -o DIR or --check")
    fine = True
    try:
        with tempfile.TemporaryDirectory() as scratch:
            program = Path(scratch) / "logits"
            if args.check:
                build_logits(program)
            for folder in args.folders:
                checkpoint = Checkpoint(folder)
                if args.check:
                    fine &= check(checkpoint, program, args.pre)
                else:
                    convert(checkpoint, args.output / f"{folder.name}.gguf", args.pre)
    except (Failed, InputError, OSError, ValueError, KeyError) as error:
        print(f"make_tiny_gguf: {error}", file=sys.stderr)
        return 2
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())

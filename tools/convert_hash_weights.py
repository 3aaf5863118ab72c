"""Convert published HashAttention maps to the file format of `hash-attention`.

    pip install numpy==2.4.6
    python tools/convert_hash_weights.py maps.pt -o weights.safetensors
    python tools/convert_hash_weights.py --check

The tool recognizes two formats:

- A torch file with a state dict, which has a network for each query head, with weights `[out, in]`:
  `LAYER.learning_to_hash_transformation_{q,k}.HEAD.{0,2,..}.{weight,bias}`
- A pickle of the hub, which has the lists `query_matrix`, `query_bias`, `key_matrix`, `key_bias`
  for each layer. A list has an array for each layer of the network: matrices `[heads, in, out]`,
  biases `[heads, out]`.

A pickle can run any code when it is loaded, so this tool allows only functions that build arrays
and tensors. Torch files are loaded with `weights_only=True`. Torch must be installed for torch
files and for pickles of torch tensors.

Exit codes: 0 success, 1 a check failed, 2 invalid input.
"""

import argparse
import hashlib
import io
import json
import os
import pickle
import re
import sys
import tempfile
from pathlib import Path

try:
    import numpy as np
except ImportError as missing:
    print(f"convert_hash_weights: {missing}: expected numpy", file=sys.stderr)
    sys.exit(2)

FORMAT = "vattention-hash/1"
DTYPES = {"f32": "<f4", "f16": "<f2"}
STATE_KEY = re.compile(
    r"(?:.*\.)?(\d+)\.learning_to_hash_transformation_([qk])\.(\d+)\.(\d+)\.(weight|bias)"
)
SIDES = {"q": "query", "k": "key"}
HUB_KEYS = {"query_matrix", "query_bias", "key_matrix", "key_bias"}
TOLERANCE = 1e-5


class InputError(Exception):
    """Error in the command line or a file; the exit code is 2."""


class CheckFailed(Exception):
    """Error: converted maps compute other values; the exit code is 1."""


# Reading, without running code of a file.

ARRAYS = {"_reconstruct", "ndarray", "dtype", "scalar", "_frombuffer"}
ARRAY_MODULES = re.compile(r"numpy(\._?core\.(multiarray|numeric))?")
STORAGES = re.compile(r"(Float|Half|BFloat16|Double|Untyped)Storage")


class ArraysOnly(pickle.Unpickler):
    def find_class(self, module, name):
        if ARRAY_MODULES.fullmatch(module) and name in ARRAYS:
            return super().find_class(module, name)
        if (module, name) in [
            ("collections", "OrderedDict"),
            ("_codecs", "encode"),
            ("torch._utils", "_rebuild_tensor_v2"),
        ]:
            return super().find_class(module, name)
        if module == "torch" and STORAGES.fullmatch(name):
            return super().find_class(module, name)
        if (module, name) == ("torch.storage", "_load_from_bytes"):
            return lambda data: torch().load(
                io.BytesIO(data), map_location="cpu", weights_only=True
            )
        raise InputError(f"refers to {module}.{name}; expected a pickle of arrays or tensors only")


def torch():
    try:
        import torch as module
    except ImportError:
        raise InputError("has torch tensors; install torch to read them")
    return module


def is_torch_file(data):
    return data[:4] == b"PK\x03\x04"


def read(path):
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; expected a file of maps")
    try:
        if is_torch_file(data):
            return torch().load(io.BytesIO(data), map_location="cpu", weights_only=True)
        return ArraysOnly(io.BytesIO(data)).load()
    except InputError as error:
        raise InputError(f"{path}: {error}")
    except Exception as error:  # Damaged files raise many kinds of exceptions.
        raise InputError(f"{path}: {error}; expected a torch file or a pickle")


def array(tensor):
    if hasattr(tensor, "detach"):
        tensor = tensor.detach().float().numpy()
    try:
        with np.errstate(over="ignore"):  # Overflows are found by the check below.
            result = np.asarray(tensor, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise InputError(f"expected arrays or tensors of numbers ({error})")
    if not np.isfinite(result).all():
        raise InputError("a number is not finite; expected finite weights")
    return result


# Converting to {layer: {"query" or "key": [(weight [heads, in, out], bias [heads, out]), ...]}}.


def convert(content):
    if not isinstance(content, dict) or not content:
        raise InputError("has no dictionary; expected a state dict or a dictionary per layer")
    if all(isinstance(value, dict) and HUB_KEYS <= value.keys() for value in content.values()):
        maps = {layer_number(key): from_hub(value) for key, value in content.items()}
    else:
        maps = from_state(content)
    for layer, sides in maps.items():
        for side, networks in sides.items():
            expect_chain(f"layer {layer}, {side}", networks)
    return maps


def layer_number(key):
    if not re.fullmatch("[0-9]+", str(key)):
        raise InputError(f"layer {key!r}; expected a number")
    return int(key)


def from_hub(layer):
    networks = {}
    for side in SIDES.values():
        parts = [layer[f"{side}_matrix"], layer[f"{side}_bias"]]
        if not all(isinstance(part, (list, tuple)) for part in parts) or len(parts[0]) != len(
            parts[1]
        ):
            raise InputError(
                f"{side}_matrix and {side}_bias differ; expected two lists of equal length"
            )
        networks[side] = [(array(weight), array(bias)) for weight, bias in zip(*parts)]
    return networks


def from_state(state):
    found = {}
    for key, tensor in state.items():
        match = STATE_KEY.fullmatch(str(key))
        if match is None:
            raise InputError(f"key {key!r}; expected ..learning_to_hash_transformation_..")
        layer, side, head, place, part = match.groups()
        networks = found.setdefault(int(layer), {}).setdefault(SIDES[side], {})
        networks.setdefault(int(place), {}).setdefault(int(head), {})[part] = array(tensor)
    return {
        layer: {side: stack_heads(found[layer].get(side, {})) for side in SIDES.values()}
        for layer in found
    }


def stack_heads(networks):
    """Returns the linear layers in order, each with the heads in one array."""
    for heads in networks.values():
        if sorted(heads) != list(range(len(heads))):
            raise InputError(f"heads are {sorted(heads)}; expected 0 to {len(heads) - 1}")
    stack = lambda heads, part: np.stack([heads[head][part] for head in sorted(heads)])
    try:
        ordered = [networks[place] for place in sorted(networks)]
        return [
            (stack(heads, "weight").transpose(0, 2, 1), stack(heads, "bias")) for heads in ordered
        ]
    except (KeyError, ValueError) as error:
        raise InputError(
            f"heads differ ({error}); expected equal networks, each with weight and bias"
        )


def expect_chain(where, networks):
    """Checks that the input size of each layer is the output size of the layer before it."""
    if not networks:
        raise InputError(f"{where}: expected a network, found none")
    heads, inputs = (*networks[0][0].shape, 0, 0)[:2]
    for i, (weight, bias) in enumerate(networks):
        if (
            weight.ndim != 3
            or weight.shape[:2] != (heads, inputs)
            or bias.shape != (heads, weight.shape[2])
        ):
            shapes = f"weight {list(weight.shape)}, bias {list(bias.shape)}"
            raise InputError(
                f"{where}: network layer {i} has {shapes}; "
                f"expected [{heads}, {inputs}, out], [{heads}, out]"
            )
        inputs = weight.shape[2]


# The output file.


def convert_numbers(numbers, dtype):
    with np.errstate(over="ignore"):
        result = numbers.astype(DTYPES[dtype])
    if not np.isfinite(result).all():
        raise InputError(f"a number is too large for --dtype {dtype}; expected f32")
    return result


def serialize(maps, dtype, scale):
    tensors = {}
    for layer, sides in maps.items():
        for side, networks in sides.items():
            for i, (weight, bias) in enumerate(networks):
                tensors[f"layers.{layer}.{side}.{i}.weight"] = convert_numbers(weight, dtype)
                tensors[f"layers.{layer}.{side}.{i}.bias"] = convert_numbers(bias, dtype)
    metadata = {"format": FORMAT} | ({} if scale is None else {"scale": str(scale)})
    header, offset, names = {"__metadata__": metadata}, 0, sorted(tensors)
    for name in names:
        end = offset + tensors[name].nbytes
        header[name] = {
            "dtype": dtype.upper(),
            "shape": tensors[name].shape,
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return b"".join(
        [len(text).to_bytes(8, "little"), text, *(tensors[name].tobytes() for name in names)]
    )


def deserialize(data):
    """Returns the tensors of a file as numpy arrays."""
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__")
    types = {name.upper(): numbers for name, numbers in DTYPES.items()}
    read = lambda info: np.frombuffer(
        data[8 + size :][slice(*info["data_offsets"])], types[info["dtype"]]
    )
    return {name: read(info).reshape(info["shape"]) for name, info in header.items()}


def write(path, data):
    beside = path.with_name(path.name + ".partial")
    try:
        beside.write_bytes(data)
        os.replace(beside, path)
    except OSError as error:
        raise InputError(f"-o {path}: {error.strerror}; expected a file that can be written")
    finally:
        beside.unlink(missing_ok=True)


# Check: random maps in both formats must compute the same before and after the conversion.


def silu(x):
    return x / (1 + np.exp(-x))


def random_state(layers, heads, widths, random):
    """Makes random maps as a state dict."""
    state = {}
    for layer in layers:
        for side in SIDES:
            for head in range(heads):
                for i, (inputs, outputs) in enumerate(zip(widths, widths[1:])):
                    name = f"{layer}.learning_to_hash_transformation_{side}.{head}.{2 * i}"
                    state[f"{name}.weight"] = random.standard_normal(
                        (outputs, inputs), dtype=np.float32
                    )
                    state[f"{name}.bias"] = random.standard_normal(outputs, dtype=np.float32)
    return state


def as_hub(state, layers, heads, count):
    """Converts a state dict to the format of the hub."""

    def side(layer, letter, part):
        name = f"{layer}.learning_to_hash_transformation_{letter}"
        arrays = [
            np.stack([state[f"{name}.{head}.{2 * i}.{part}"] for head in range(heads)])
            for i in range(count)
        ]
        return [x.transpose(0, 2, 1) for x in arrays] if part == "weight" else arrays

    parts = {"matrix": "weight", "bias": "bias"}
    return {
        layer: {
            f"{SIDES[s]}_{name}": side(layer, s, part)
            for s in SIDES
            for name, part in parts.items()
        }
        for layer in layers
    }


def outputs_of_state(state, layer, side, head, count, x):
    """Computes the network of a head as torch does: weight times x."""
    for i in range(count):
        name = f"{layer}.learning_to_hash_transformation_{side}.{head}.{2 * i}"
        x = state[f"{name}.weight"] @ (silu(x) if i else x) + state[f"{name}.bias"]
    return x


def outputs_of_file(tensors, layer, side, head, count, x):
    """Computes the network of a head as `hash-attention` does: x times weight."""
    for i in range(count):
        name = f"layers.{layer}.{SIDES[side]}.{i}"
        x = (silu(x) if i else x) @ tensors[f"{name}.weight"][head] + tensors[f"{name}.bias"][head]
    return x


class Evil:
    def __reduce__(self):
        return (os.system, ("true",))


def damaged():
    """Returns contents that must be refused, by their fault."""
    hub = lambda **changes: {
        0: {key: [np.ones((2, 4, 4) if "matrix" in key else (2, 4))] for key in HUB_KEYS} | changes
    }
    state = random_state([0], 3, [4, 4], np.random.default_rng(1))
    return {
        "no list": hub(query_matrix=None),
        "text": hub(query_matrix=["abc"]),
        "an object": hub(query_matrix=[{}]),
        "a number": hub(query_matrix=[1.0]),
        "too few biases": hub(query_matrix=[np.ones((2, 4, 4))] * 2),
        "other heads": hub(query_bias=[np.ones((3, 4))]),
        "not finite": hub(key_bias=[np.full((2, 4), 1e300)]),
        "too large for f16": hub(key_bias=[np.full((2, 4), 1e6)]),
        "a layer that is no number": {"\u00b2": hub()[0]},
        "a head that is missing": {key: x for key, x in state.items() if ".1.0." not in key},
        "a side that is missing": {key: x for key, x in state.items() if "_q." in key},
    }


def check():
    for fault, content in damaged().items():
        try:
            serialize(convert(content), "f16", None)
        except InputError:
            continue
        raise CheckFailed(f"{fault}: expected an error, but the conversion succeeded")
    random = np.random.default_rng(0)
    layers, heads, widths = [0, 7, 11], 12, [16, 16, 16, 32]
    count = len(widths) - 1
    state = random_state(layers, heads, widths, random)
    with tempfile.TemporaryDirectory() as folder:
        pickled = Path(folder) / "maps.pkl"
        pickled.write_bytes(pickle.dumps(as_hub(state, layers, heads, count)))
        contents = {"state dict": state, "hub pickle": read(pickled)}
        try:
            module = torch()
            module.save(
                {key: module.from_numpy(x) for key, x in state.items()}, Path(folder) / "maps.pt"
            )
            contents["torch file"] = read(Path(folder) / "maps.pt")
            pickled.write_bytes(
                pickle.dumps({0: {key: [module.ones(1, 2, 3)] for key in HUB_KEYS}})
            )
            contents_of_tensors = read(pickled)
            if float(array(contents_of_tensors[0]["key_bias"][0]).sum()) != 6:
                raise CheckFailed("a pickle of torch tensors was read wrongly")
        except InputError as missing:
            print(f"  torch files were not checked: {missing}")
        pickled.write_bytes(pickle.dumps({0: Evil()}))
        try:
            read(pickled)
        except InputError as refused:
            print(f"  refused as expected: {str(refused).removeprefix(folder)}")
        else:
            raise CheckFailed("a pickle that runs a command was loaded")
    for name, content in contents.items():
        tensors = deserialize(serialize(convert(content), "f32", None))
        worst = 0
        for layer in layers:
            for side in SIDES:
                for head in range(heads):
                    x = random.standard_normal(widths[0], dtype=np.float32)
                    expected = outputs_of_state(state, layer, side, head, count, x)
                    found = outputs_of_file(tensors, layer, side, head, count, x)
                    worst = max(
                        worst, float(np.abs(found - expected).max() / np.abs(expected).max())
                    )
        print(f"  {name}: outputs differ by {worst:.3g} (expected at most {TOLERANCE:g})")
        if not worst <= TOLERANCE:
            raise CheckFailed(f"{name}: outputs differ by {worst:.3g}")


# The command line.


class Parser(argparse.ArgumentParser):
    def error(self, message):
        raise InputError(message)


def parse_arguments():
    parser = Parser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("maps", nargs="?", type=Path, help="a torch file or a pickle")
    parser.add_argument(
        "-o", dest="output", type=Path, metavar="FILE", help="write this safetensors file"
    )
    parser.add_argument("--dtype", choices=DTYPES, default="f32", help="element type of the file")
    parser.add_argument(
        "--scale", type=float, help="scale of the model's logits, if not 1 / sqrt(head_dim)"
    )
    parser.add_argument(
        "--check", action="store_true", help="convert random maps of both formats and compare"
    )
    args = parser.parse_args()
    if not args.check and (args.maps is None or args.output is None):
        raise InputError("expected a file of maps and -o FILE, or --check")
    if args.scale is not None and not 1e-30 < args.scale < 1e30:
        raise InputError(f"--scale {args.scale}; expected a number between 1e-30 and 1e30")
    if args.output and args.maps and args.output.resolve() == args.maps.resolve():
        raise InputError(f"-o {args.output}: expected another file than the input")
    if args.output and (args.output.is_dir() or not args.output.parent.is_dir()):
        raise InputError(f"-o {args.output}: expected a file in an existing folder")
    return args


def run(args):
    if args.check:
        check()
    if args.maps and args.output:
        try:
            maps = convert(read(args.maps))
        except InputError as error:
            message = str(error)
            raise InputError(
                message if message.startswith(str(args.maps)) else f"{args.maps}: {message}"
            )
        data = serialize(maps, args.dtype, args.scale)
        write(args.output, data)
        print(f"{args.output}: {len(data)} bytes, sha256 {hashlib.sha256(data).hexdigest()}")


def main():
    try:
        run(parse_arguments())
    except InputError as error:
        print(f"convert_hash_weights: {error}", file=sys.stderr)
        return 2
    except CheckFailed as error:
        print(f"convert_hash_weights: check failed: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

//! Number types of tensors, and their type numbers in GGUF files.

use crate::packed::QuantFormat;

/// Number type of a stored tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StoredType {
    F32,
    F16,
    Bf16,
    Quantised(QuantFormat),
}

/// Supported types, with their numbers and names.
const TYPES: [(u32, &str, StoredType); 14] = [
    (0, "F32", StoredType::F32),
    (1, "F16", StoredType::F16),
    (30, "BF16", StoredType::Bf16),
    (2, "Q4_0", StoredType::Quantised(QuantFormat::Q4_0)),
    (3, "Q4_1", StoredType::Quantised(QuantFormat::Q4_1)),
    (6, "Q5_0", StoredType::Quantised(QuantFormat::Q5_0)),
    (7, "Q5_1", StoredType::Quantised(QuantFormat::Q5_1)),
    (8, "Q8_0", StoredType::Quantised(QuantFormat::Q8_0)),
    (12, "Q4_K", StoredType::Quantised(QuantFormat::Q4K)),
    (13, "Q5_K", StoredType::Quantised(QuantFormat::Q5K)),
    (14, "Q6_K", StoredType::Quantised(QuantFormat::Q6K)),
    (20, "IQ4_NL", StoredType::Quantised(QuantFormat::Iq4Nl)),
    (23, "IQ4_XS", StoredType::Quantised(QuantFormat::Iq4Xs)),
    (39, "MXFP4", StoredType::Quantised(QuantFormat::Mxfp4)),
];

/// Types of llama.cpp that are not supported, by number.
const OTHERS: [(u32, &str); 22] = [
    (9, "Q8_1"),
    (10, "Q2_K"),
    (11, "Q3_K"),
    (15, "Q8_K"),
    (16, "IQ2_XXS"),
    (17, "IQ2_XS"),
    (18, "IQ3_XXS"),
    (19, "IQ1_S"),
    (21, "IQ3_S"),
    (22, "IQ2_S"),
    (24, "I8"),
    (25, "I16"),
    (26, "I32"),
    (27, "I64"),
    (28, "F64"),
    (29, "IQ1_M"),
    (31, "Q4_0_4_4"),
    (32, "Q4_0_4_8"),
    (33, "Q4_0_8_8"),
    (34, "TQ1_0"),
    (35, "TQ2_0"),
    (40, "NVFP4"),
];

impl StoredType {
    /// Number of numbers of a block, which is stored as a whole.
    pub(super) fn block_size(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => 1,
            Self::Quantised(format) => format.unit_weights(),
        }
    }

    /// Bytes of a block in a file.
    pub(super) fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::Quantised(format) => format.file_bytes(),
        }
    }
}

/// Returns the type with a number.
///
/// # Errors
/// The name of a type that is not supported, or its number if it is unknown, and the supported
/// types.
pub(super) fn find_type(number: u32) -> Result<StoredType, String> {
    if let Some((_, _, found)) = TYPES.iter().find(|(known, ..)| *known == number) {
        return Ok(*found);
    }
    let other = OTHERS.iter().find(|(other, _)| *other == number);
    let found = other.map_or_else(|| format!("type number {number}"), |(_, name)| (*name).into());
    let names = TYPES.map(|(_, name, _)| name);
    let (last, names) = names.split_last().expect("types are supported");
    Err(format!("{found}; expected {} or {last}", names.join(", ")))
}

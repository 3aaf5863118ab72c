//! Pre-tokenizers, which split a text into words before byte-level BPE. `tokenizer.ggml.pre` names
//! the tokenizer whose expressions apply.

use tokenizers::normalizers::NFC;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::tokenizer::SplitDelimiterBehavior;
use tokenizers::{NormalizerWrapper, PreTokenizerWrapper};

use super::keys::{TokenizerKeys, missing};
use crate::gguf::value::quoted;

const PRE: &str = "tokenizer.ggml.pre";

/// Step of a pre-tokenizer, which splits the pieces of the step before.
enum SplitStep {
    /// Splits at the matches of an expression; the matches and the text between them become pieces.
    Split(&'static str),
    /// Makes every digit a piece.
    Digits,
}

use SplitStep::{Digits as EachDigit, Split as Match};

/// Pre-tokenizer that a family of models shares.
pub(super) struct PreTokenizer {
    names: &'static [&'static str],
    steps: &'static [SplitStep],
    /// True if characters are composed (NFC) first.
    nfc: bool,
    /// True if a word that is a token stays whole, even if merges do not lead to it.
    pub(super) ignore_merges: bool,
    /// True if `<bos>` precedes a text unless the metadata says otherwise.
    pub(super) add_bos: bool,
}

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
const QWEN2: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
const TEKKEN: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
const CJK: &str = r"[\x{4E00}-\x{9FA5}\x{800}-\x{4E00}\x{AC00}-\x{D7FF}]+";
/// Letters of scripts with upper and lower case.
const CASED: &str = concat!(
    r"\s?[",
    concat!(
        r"\x{41}-\x{5A}\x{61}-\x{7A}\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}",
        r"\x{1BC}-\x{1BF}\x{1C4}-\x{293}\x{295}-\x{2AF}\x{370}-\x{373}\x{376}\x{377}",
        r"\x{37B}-\x{37D}\x{37F}\x{386}\x{388}-\x{38A}\x{38C}\x{38E}-\x{3A1}\x{3A3}-\x{3F5}",
        r"\x{3F7}-\x{481}\x{48A}-\x{52F}\x{531}-\x{556}\x{10A0}-\x{10C5}\x{13A0}-\x{13F5}",
        r"\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B}",
        r"\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D}",
        r"\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}\x{1F5D}",
        r"\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4}",
        r"\x{1FC6}-\x{1FCC}\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}",
        r"\x{1FF2}-\x{1FF4}\x{1FF6}-\x{1FFC}\x{2102}\x{2107}\x{210A}-\x{2113}\x{2115}",
        r"\x{2119}-\x{211D}\x{2124}\x{2126}\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134}\x{2139}",
        r"\x{213C}-\x{213F}\x{2145}-\x{2149}\x{214E}\x{2183}\x{2184}\x{2C00}-\x{2C7B}",
        r"\x{2C7E}-\x{2CE4}\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3}\x{A640}-\x{A66D}\x{A680}-\x{A69B}",
        r"\x{A722}-\x{A76F}\x{A771}-\x{A787}\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}",
        r"\x{FB00}-\x{FB06}\x{FB13}-\x{FB17}\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}",
        r"\x{10400}-\x{1044F}\x{104B0}-\x{104D3}\x{104D8}-\x{104FB}\x{10C80}-\x{10CB2}",
        r"\x{10CC0}-\x{10CF2}\x{118A0}-\x{118DF}\x{1E900}-\x{1E943}",
    ),
    "]+",
);
const WIDE_PUNCTUATION: &str =
    r"\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+";
const DEEPSEEK_V3: &str = concat!(
    r##"[!"\#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}\~][A-Za-z]+"##,
    r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*",
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
);

const GPT4O: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
/// Expression of [`GPT4O`], except that each digit is a piece.
const YOUTU: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
const SPARK: &str = concat!(
    r##"[!"\#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}\~][A-Za-z]+"##,
    r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+",
);
const BLOOM: &str = r" ?[^(\s|[.,!?…。，、।۔،])]+";
const THREE_DIGITS: &str = r"\p{N}{1,3}";
const CJK_AND_KANA: &str = r"[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+";

/// Supported pre-tokenizers. The expressions are those of the tokenizers' own tokenizer.json; for
/// `default`, and for names that many tokenizers share, they are llama.cpp's.
const KNOWN: &[PreTokenizer] = &[
    PreTokenizer {
        names: &[
            "gpt-2",
            "mpt",
            "olmo",
            "jais",
            "phi-2",
            "jina-es",
            "jina-de",
            "jina-v1-en",
            "jina-v2-es",
            "jina-v2-de",
            "jina-v2-code",
            "roberta-bpe",
            "gigachat",
            "a.x-4.0",
            "mellum",
            "exaone4",
            "trillion",
            "granite-docling",
        ],
        steps: &[Match(GPT2)],
        ..PLAIN
    },
    PreTokenizer {
        names: &["smollm", "starcoder", "refact", "codeshell", "exaone", "minerva-7b", "mellum2"],
        steps: &[EachDigit, Match(GPT2)],
        ..PLAIN
    },
    PreTokenizer { names: &["modern-bert"], steps: &[Match(GPT2)], nfc: true, ..PLAIN },
    PreTokenizer { names: &["command-r"], steps: &[EachDigit, Match(GPT2)], nfc: true, ..PLAIN },
    PreTokenizer {
        names: &[
            "llama3",
            "llama-v3",
            "llama-bpe",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
            "jina-v5-nano",
        ],
        steps: &[Match(LLAMA3)],
        ignore_merges: true,
        add_bos: true,
        ..PLAIN
    },
    PreTokenizer { names: &["smaug-bpe", "dbrx", "chatglm-bpe"], steps: &[Match(LLAMA3)], ..PLAIN },
    PreTokenizer {
        names: &["glm4", "glm5"],
        steps: &[Match(LLAMA3)],
        ignore_merges: true,
        ..PLAIN
    },
    PreTokenizer { names: &["qwen2"], steps: &[Match(QWEN2)], nfc: true, ..PLAIN },
    PreTokenizer {
        names: &[
            "deepseek-r1-qwen",
            "megrez",
            "stablelm2",
            "kormo",
            "f2llmv2",
            "hunyuan",
            "solar-open",
            "grok-2",
        ],
        steps: &[Match(QWEN2)],
        ..PLAIN
    },
    PreTokenizer { names: &["laguna"], steps: &[Match(r"[^\n]+|[\n]+"), Match(QWEN2)], ..PLAIN },
    PreTokenizer {
        names: &["qwen35"],
        steps: &[Match(concat!(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}",
            r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ))],
        nfc: true,
        ..PLAIN
    },
    PreTokenizer {
        names: &["ufakzeka"],
        steps: &[Match(
            r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        )],
        ..PLAIN
    },
    PreTokenizer {
        names: &["seed-coder"],
        steps: &[Match(concat!(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}",
            r"| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+",
        ))],
        ..PLAIN
    },
    PreTokenizer {
        names: &["bailingmoe", "bailingmoe2", "llada-moe"],
        steps: &[Match(concat!(
            r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}",
            r"| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
        ))],
        ..PLAIN
    },
    PreTokenizer {
        names: &["exaone-moe"],
        steps: &[Match(concat!(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+",
            r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
        ))],
        ..PLAIN
    },
    PreTokenizer {
        names: &["minicpm5"],
        steps: &[
            Match(THREE_DIGITS),
            Match(concat!(
                r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+",
                r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
            )),
        ],
        ignore_merges: true,
        ..PLAIN
    },
    PreTokenizer {
        names: &["jais-2"],
        steps: &[Match(concat!(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}",
            r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+",
            r"|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)",
            r"|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}",
        ))],
        ..PLAIN
    },
    PreTokenizer {
        names: &["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"],
        steps: &[Match(GPT4O)],
        ..PLAIN
    },
    PreTokenizer {
        names: &["granite-embed-multi-97m"],
        steps: &[Match(GPT4O)],
        ignore_merges: true,
        ..PLAIN
    },
    PreTokenizer {
        names: &["tiny_aya", "cohere2moe"],
        steps: &[Match(r"\d{1,3}(?=(?:\d{3})*\b)"), Match(GPT4O)],
        ..PLAIN
    },
    PreTokenizer {
        names: &["poro-chat", "bloom", "gpt3-finnish"],
        steps: &[Match(BLOOM)],
        ..PLAIN
    },
    PreTokenizer { names: &["viking"], steps: &[Match(BLOOM), EachDigit], ..PLAIN },
    PreTokenizer {
        names: &["superbpe"],
        steps: &[Match(r"\p{N}+"), Match(r"(?=(\d{3})+(?!\d))")],
        ..PLAIN
    },
    PreTokenizer {
        names: &["tekken"],
        steps: &[Match(TEKKEN)],
        ignore_merges: true,
        add_bos: true,
        ..PLAIN
    },
    PreTokenizer {
        names: &["deepseek-llm"],
        steps: &[
            Match(r"[\r\n]"),
            Match(CASED),
            Match(WIDE_PUNCTUATION),
            Match(r"\s+$"),
            Match(CJK),
            Match(r"\p{N}+"),
        ],
        ..PLAIN
    },
    PreTokenizer {
        names: &["deepseek-coder"],
        steps: &[Match(r"[\r\n]"), Match(r"\s?\p{L}+"), Match(r"\s?\p{P}+"), Match(CJK), EachDigit],
        ..PLAIN
    },
    PreTokenizer {
        names: &["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"],
        steps: &[Match(THREE_DIGITS), Match(CJK_AND_KANA), Match(DEEPSEEK_V3)],
        ..PLAIN
    },
    PreTokenizer {
        names: &["spark2_5"],
        steps: &[Match(THREE_DIGITS), Match(CJK_AND_KANA), Match(SPARK), EachDigit],
        ..PLAIN
    },
    PreTokenizer {
        names: &["youtu"],
        steps: &[
            Match(concat!(
                r"[\x{AC00}-\x{D7A3}\x{3131}-\x{318E}]+",
                r"|[\x{FF01}\x{2026}\x{201C}\x{201D}\x{2018}\x{2019}\x{2014}\x{FF1A}\x{FF1B}",
                r"\x{FF0C}\x{3001}-\x{303F}\x{FE30}-\x{FE4F}]+",
                r"|[\x{3105}-\x{312F}]+|[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+",
            )),
            Match(YOUTU),
        ],
        ignore_merges: true,
        ..PLAIN
    },
    PreTokenizer {
        names: &["default"],
        steps: &[
            Match(r"[\p{P}$+<=>^\~|]+"),
            Match(GPT2),
            Match(r"\p{N}+"),
            Match(r"[0-9][0-9][0-9]"),
        ],
        ..PLAIN
    },
];

const PLAIN: PreTokenizer =
    PreTokenizer { names: &[], steps: &[], nfc: false, ignore_merges: false, add_bos: false };

/// Returns the pre-tokenizer that the metadata names.
pub(super) fn read(keys: TokenizerKeys) -> Result<&'static PreTokenizer, String> {
    let name = keys.text(PRE)?.ok_or_else(|| missing(PRE, "the name of a pre-tokenizer"))?;
    let known = KNOWN.iter().find(|known| known.names.contains(&name));
    known.ok_or_else(|| format!("`{PRE}` is {}; expected {}", quoted(name), expected(name)))
}

/// Describes the known names that resemble an unknown one.
fn expected(name: &str) -> String {
    let count = KNOWN.iter().flat_map(|known| known.names).count();
    let alike = similar_names(name);
    let such = if alike.is_empty() { EXAMPLES.to_vec() } else { alike };
    let such = such.join(", ");
    format!(
        "one of {count} pre-tokenizers of llama.cpp, such as {such} \
         (docs/notes/pre-tokenizers.md has all)"
    )
}

/// Names of common models.
const EXAMPLES: [&str; 5] = ["llama-bpe", "qwen2", "gpt-2", "tekken", "default"];

/// Returns known names of the same family, which begin with the same word.
fn similar_names(name: &str) -> Vec<&'static str> {
    let word = |name: &str| {
        let end = name.find(|letter: char| !letter.is_alphabetic()).unwrap_or(name.len());
        name[..end].to_lowercase()
    };
    let family = word(name);
    let names = KNOWN.iter().flat_map(|known| known.names).copied();
    names.filter(|known| !family.is_empty() && word(known) == family).collect()
}

impl PreTokenizer {
    pub(super) fn normalizer(&self) -> Option<NormalizerWrapper> {
        self.nfc.then(|| NFC.into())
    }

    pub(super) fn build(&self) -> Result<Sequence, String> {
        let mut steps = self.steps.iter().map(SplitStep::build).collect::<Result<Vec<_>, _>>()?;
        steps.push(ByteLevel::new(false, true, false).into());
        Ok(Sequence::new(steps))
    }
}

impl SplitStep {
    fn build(&self) -> Result<PreTokenizerWrapper, String> {
        Ok(match self {
            Self::Split(expression) => {
                let pattern = SplitPattern::Regex((*expression).to_owned());
                Split::new(pattern, SplitDelimiterBehavior::Isolated, false)
                    .map_err(|error| error.to_string())?
                    .into()
            }
            Self::Digits => Digits::new(true).into(),
        })
    }
}

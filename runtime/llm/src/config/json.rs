//! Keys of `config.json`, as transformers 4 and 5 write them.

mod rope;

use std::cell::RefCell;
use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::{Map, Value};
use vattention_core::Shape;

use super::block::GateActivation;
use super::keys::KeySource;
use crate::family::{Family, Multimodal};

/// Names of keys that transformers 5 or some families write in place of others.
const ALIASES: [(&str, &[&str]); 3] = [
    ("num_experts", &["num_local_experts"]),
    ("hidden_act", &["hidden_activation"]),
    ("sliding_window_pattern", &["_sliding_window_pattern"]),
];

/// Keys of a multimodal model that hold for its language model, too.
const OUTER_KEYS: [&str; 2] = ["eos_token_id", "quantization_config"];

const TIED: &str = "tie_word_embeddings";

/// Kinds of attention in `layer_types`.
const FULL: &str = "full_attention";
const SLIDING: &str = "sliding_attention";
const CHUNKED: &str = "chunked_attention";

/// Keys of a `config.json`.
pub(crate) struct JsonKeys {
    keys: Map<String, Value>,
    /// Keys that were asked for.
    read: RefCell<BTreeSet<String>>,
}

/// Keys of `generation_config.json` that this crate uses.
#[derive(Debug, Deserialize)]
pub(crate) struct GenerationFile {
    pub(crate) eos_token_id: Option<Ends>,
}

/// Tokens that end a text.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum Ends {
    One(u32),
    More(Vec<u32>),
}

impl From<Ends> for Vec<u32> {
    fn from(ends: Ends) -> Self {
        match ends {
            Ends::One(end) => vec![end],
            Ends::More(ends) => ends,
        }
    }
}

impl JsonKeys {
    pub(crate) fn new(keys: Map<String, Value>) -> Self {
        Self { keys, read: RefCell::default() }
    }

    /// Returns the keys of a multimodal model's language model.
    pub(crate) fn language_model(&self, part: &Multimodal) -> Result<Self, String> {
        let object = |value: &Value| value.as_object().cloned();
        let found = self.read("text_config", "an object", object)?;
        let mut keys = found.ok_or("no `text_config`")?;
        let kind = keys.get("model_type").cloned().unwrap_or_default();
        if !part.text_types.iter().any(|known| kind == **known) {
            let known = part.text_types.join(", ");
            return Err(format!("`text_config.model_type` is {kind}; expected one of {known}"));
        }
        for key in OUTER_KEYS {
            if let Some(value) = self.get(key) {
                keys.insert(key.into(), value.clone());
            }
        }
        // transformers 5 follows the outer key, transformers 4 the inner one. Weights that are
        // stored twice, and differ, are not tied in either case.
        if let Some(outer) = self.get(TIED) {
            let tied = keys.entry(TIED).or_insert_with(|| outer.clone());
            if *outer == true {
                *tied = outer.clone();
            }
        }
        for (key, default) in part.defaults {
            keys.entry(*key).or_insert_with(|| (*default).into());
        }
        Ok(Self::new(keys))
    }

    /// Names of the architectures.
    pub(crate) fn architectures(&self) -> Vec<&str> {
        match self.get("architectures") {
            Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).collect(),
            _ => Vec::new(),
        }
    }

    /// Reads the tokens that end a text.
    pub(crate) fn ends(&self) -> Result<Vec<u32>, String> {
        let ends: Option<Ends> = self.parse("eos_token_id")?;
        Ok(ends.map(Vec::from).unwrap_or_default())
    }

    /// Returns the same keys, of which none has been asked for.
    pub(crate) fn renew(&self) -> Self {
        Self::new(self.keys.clone())
    }

    /// Keys that have not been asked for, without those whose value is null or false.
    pub(crate) fn unread(&self) -> Vec<&str> {
        let unread = |(key, value): &(&String, &Value)| {
            !value.is_null() && **value != false && !self.read.borrow().contains(*key)
        };
        self.keys.iter().filter(unread).map(|(key, _)| key.as_str()).collect()
    }

    /// Returns the name under which the file has a key, and its value.
    fn find<'k>(&self, key: &'k str) -> Option<(&'k str, &Value)> {
        let aliases = ALIASES.iter().find(|(name, _)| *name == key);
        let aliases = aliases.map_or(&[][..], |(_, aliases)| aliases);
        let mut found = None;
        // Every alias counts as read.
        for name in [key].into_iter().chain(aliases.iter().copied()) {
            self.read.borrow_mut().insert(name.to_owned());
            let value = self.keys.get(name).filter(|value| !value.is_null());
            found = found.or(value.map(|value| (name, value)));
        }
        found
    }

    fn get(&self, key: &str) -> Option<&Value> {
        self.find(key).map(|(_, value)| value)
    }

    fn read<T>(
        &self,
        key: &str,
        expected: &str,
        convert: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<T>, String> {
        let Some((name, value)) = self.find(key) else { return Ok(None) };
        let refuse = || format!("`{name}` is {value}; expected {expected}");
        convert(value).map(Some).ok_or_else(refuse)
    }

    fn parse<T: for<'de> Deserialize<'de>>(&self, key: &str) -> Result<Option<T>, String> {
        let Some(value) = self.get(key) else { return Ok(None) };
        T::deserialize(value).map(Some).map_err(|error| format!("`{key}`: {error}"))
    }

    /// Returns for each layer of `layer_types` whether it is a local one, of the kind `local`.
    fn layers_of(&self, local: &str, layers: usize) -> Result<Option<Vec<bool>>, String> {
        let texts = |value: &Value| -> Option<Vec<String>> {
            value.as_array()?.iter().map(|item| item.as_str().map(str::to_owned)).collect()
        };
        let Some(types) = self.read("layer_types", "a list of texts", texts)? else {
            return Ok(None);
        };
        if types.len() != layers {
            let found = types.len();
            return Err(format!(
                "`layer_types` has {found} items; expected `num_hidden_layers` = {layers}"
            ));
        }
        let other = types.iter().position(|kind| kind != FULL && kind != local);
        match other {
            None => Ok(Some(types.iter().map(|kind| kind == local).collect())),
            Some(layer) => Err(format!(
                "`layer_types`: layer {layer} is {:?}; expected {FULL:?} or {local:?}",
                types[layer]
            )),
        }
    }
}

impl KeySource for JsonKeys {
    fn is_gguf(&self) -> bool {
        false
    }

    fn name(&self, key: &str) -> String {
        self.find(key).map_or(key, |(name, _)| name).into()
    }

    fn has(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    fn whole(&self, key: &str) -> Result<Option<u64>, String> {
        self.read(key, "a whole number", Value::as_u64)
    }

    fn number(&self, key: &str) -> Result<Option<f64>, String> {
        self.read(key, "a number", Value::as_f64)
    }

    fn flag(&self, key: &str) -> Result<Option<bool>, String> {
        self.read(key, "true or false", Value::as_bool)
    }

    fn wholes(&self, key: &str) -> Result<Option<Vec<u64>>, String> {
        let whole = |value: &Value| -> Option<Vec<u64>> {
            value.as_array()?.iter().map(Value::as_u64).collect()
        };
        self.read(key, "a list of whole numbers", whole)
    }

    fn sliding_layers(&self, layers: usize) -> Result<Option<Vec<bool>>, String> {
        self.layers_of(SLIDING, layers)
    }

    fn chunked_layers(&self, layers: usize) -> Result<Option<Vec<bool>>, String> {
        self.layers_of(CHUNKED, layers)
    }

    fn may_lack_kv_heads(&self, family: &Family) -> bool {
        family.may_lack_kv_heads
    }

    fn refuse_unsupported(&self, family: &Family, _: &Shape) -> Result<(), String> {
        if let Some(value) = self.get("quantization_config") {
            let method = value.get("quant_method").and_then(Value::as_str);
            if !(family.mxfp4 && method == Some("mxfp4")) {
                return Err(
                    "`quantization_config`: quantised weights are not supported; expected \
                     weights in F32, F16 or BF16"
                        .into(),
                );
            }
        }
        let expected = match family.activation {
            GateActivation::Silu | GateActivation::ClampedSwiglu { .. } => "silu",
            GateActivation::GeluTanh => "gelu_pytorch_tanh",
        };
        match self.find("hidden_act") {
            Some((name, found)) if found != expected => {
                Err(format!("`{name}` is {found}; expected {expected:?}"))
            }
            _ => Ok(()),
        }
    }
}

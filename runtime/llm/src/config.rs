//! Configuration of a model.

mod block;
pub(crate) mod json;
pub(crate) mod keys;

use vattention_core::Shape;

use crate::family::Family;
use crate::rope::{Rotary, Sharpening};
use crate::{Error, Result};

pub use block::{Block, GateActivation, HeadNorm, LayerForm, LayerWindow};
use keys::KeySource;

/// Largest number of layers; random streams distinguish this many.
pub(crate) const MOST_LAYERS: usize = 4096;

/// Dimensions and options of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Family of the model, such as `Llama`.
    pub architecture: &'static str,
    /// Elements per token between layers.
    pub hidden_size: usize,
    /// Elements per token within a layer's feed-forward network.
    pub intermediate_size: usize,
    /// Dimensions of the experts, if some layers have experts.
    pub experts: Option<Experts>,
    /// Numbers of the layers without experts, if the model has experts.
    pub without_experts: Vec<usize>,
    /// Number of layers.
    pub layers: usize,
    /// Number of heads in each layer, and their dimensions.
    pub shape: Shape,
    /// Number of tokens in the vocabulary.
    pub vocab_size: usize,
    /// Largest number of tokens of a sequence.
    pub context: usize,
    /// Key of `config.json` or of the GGUF metadata that limits the context.
    pub context_key: String,
    /// Structure that all layers share.
    pub block: Block,
    /// Windows, rotary embeddings and scaled queries of each layer, `[layers]`.
    pub layer_forms: Vec<LayerForm>,
    /// Rotary embeddings of the layers.
    pub ropes: Vec<Rotary>,
    /// Growth of queries with their position, in the layers that
    /// [scale queries](LayerForm::scales_queries).
    pub query_scaling: Option<Sharpening>,
    /// Epsilon of the RMS norms, added to the mean square.
    pub norm_epsilon: f64,
    /// True if the embeddings are also the weights of the logits.
    pub tied: bool,
    /// Linear maps that have a bias.
    pub biases: Biases,
    /// Tokens that end a text.
    pub ends: Vec<u32>,
    pub(crate) family: &'static Family,
}

/// Dimensions of a feed-forward network with experts, of which each token uses a few.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Experts {
    /// Number of experts in a layer.
    pub count: usize,
    /// Number of experts that a token uses, at most `count`.
    pub per_token: usize,
    /// Elements per token within an expert.
    pub inner: usize,
    /// Weights of a token's experts.
    pub weights: ExpertWeights,
    /// True if all tokens also use a shared expert, with the weight 1.
    pub shared: bool,
    /// True if the router and the experts have biases.
    pub biased: bool,
}

/// Weights of a token's experts, which are those of the largest logits of the router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertWeights {
    /// Softmax of the logits of the token's experts, which multiplies outputs.
    ChosenSoftmax,
    /// Softmax of the logits of all experts, which multiplies outputs.
    Softmax,
    /// Sigmoid of the logit, which multiplies the input of the expert.
    InputSigmoid,
}

/// Linear maps that have a bias.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Biases {
    /// Biases of queries, keys and values.
    pub inputs: bool,
    /// Bias of the attention's output.
    pub output: bool,
    /// Biases of the feed-forward network.
    pub feed_forward: bool,
}

impl Config {
    /// Describes a model of this family by what most models have in common, with the structure of
    /// Llama.
    pub(crate) fn like_llama(
        family: &'static Family,
        keys: &dyn KeySource,
    ) -> Result<Self, String> {
        let hidden_size = keys.size("hidden_size")?;
        let layers = keys.size("num_hidden_layers")?;
        if layers > MOST_LAYERS {
            let name = keys.name("num_hidden_layers");
            return Err(format!("`{name}` is {layers}; expected at most {MOST_LAYERS}"));
        }
        let shape = shape(family, keys, hidden_size)?;
        keys.refuse_unsupported(family, &shape)?;
        let context = keys.size("max_position_embeddings")?;
        let form = LayerForm { window: None, rope: Some(0), scales_queries: false };
        Ok(Self {
            architecture: family.name,
            hidden_size,
            intermediate_size: keys.size("intermediate_size")?,
            experts: None,
            without_experts: Vec::new(),
            layers,
            shape,
            vocab_size: keys.size("vocab_size")?,
            context,
            context_key: keys.name("max_position_embeddings"),
            block: Block { activation: family.activation, ..Block::default() },
            layer_forms: vec![form; layers],
            ropes: vec![keys.rope(family, shape.head_dim, context)?],
            query_scaling: None,
            norm_epsilon: keys.positive_or("rms_norm_eps", 1e-6)?,
            tied: keys.flag("tie_word_embeddings")?.unwrap_or(family.tied),
            biases: Biases::default(),
            ends: Vec::new(),
            family,
        })
    }

    /// Checks that a sequence of this number of tokens fits into the model's context.
    ///
    /// # Errors
    /// [`Error::Input`] with the key of the checkpoint that limits the context.
    pub fn check_length(&self, tokens: usize) -> Result<()> {
        let Self { context, context_key, .. } = self;
        if tokens <= *context {
            return Ok(());
        }
        let reason = format!(
            "the sequence would have {tokens} tokens; expected at most `{context_key}` = {context}"
        );
        Err(Error::input("context", reason))
    }

    /// Dimensions of a layer's experts, if the layer has experts.
    pub fn experts_of(&self, layer: usize) -> Option<&Experts> {
        self.experts.as_ref().filter(|_| !self.without_experts.contains(&layer))
    }

    /// Last tokens that a layer attends to, or `None` if it attends to all.
    pub fn window(&self, layer: usize) -> Option<LayerWindow> {
        self.layer_forms[layer].window
    }

    /// Lets layers slide. The window has to be in the key `sliding_window`, unless there is a
    /// default. A window that contains the model's context has no effect.
    pub(crate) fn slide(
        &mut self,
        keys: &dyn KeySource,
        default: Option<usize>,
        slides: &[bool],
    ) -> Result<(), String> {
        if !slides.contains(&true) {
            return Ok(());
        }
        let window = match default {
            Some(window) if !keys.has("sliding_window") => window,
            _ => keys.size("sliding_window")?,
        };
        for (form, slides) in self.layer_forms.iter_mut().zip(slides) {
            let window = LayerWindow { size: window, aligned: false };
            form.window = (*slides && window.size < self.context).then_some(window);
        }
        Ok(())
    }

    /// Gives sliding layers a rotary embedding of their own.
    pub(crate) fn rotate_sliding(&mut self, rotary: Rotary, slides: &[bool]) {
        self.ropes.push(rotary);
        for (form, slides) in self.layer_forms.iter_mut().zip(slides) {
            form.rope = Some(usize::from(*slides));
        }
    }

    /// Lets all layers slide, if the key `sliding_window` has a window.
    pub(crate) fn slide_everywhere(&mut self, keys: &dyn KeySource) -> Result<(), String> {
        let all = vec![true; self.layers];
        if keys.has("sliding_window") { self.slide(keys, None, &all) } else { Ok(()) }
    }

    /// Gives the layers of this model experts, with the elements per token of the key `inner`.
    pub(crate) fn add_experts(&mut self, keys: &dyn KeySource, inner: &str) -> Result<(), String> {
        let count = keys.size("num_experts")?;
        let per_token = keys.size("num_experts_per_tok")?;
        if per_token > count {
            let (used, all) = (keys.name("num_experts_per_tok"), keys.name("num_experts"));
            return Err(format!("`{used}` is {per_token}; expected at most `{all}` = {count}"));
        }
        let inner = keys.size(inner)?;
        let weights = ExpertWeights::ChosenSoftmax;
        let experts = Experts { count, per_token, inner, weights, shared: false, biased: false };
        self.experts = Some(experts);
        Ok(())
    }
}

/// Largest head dimension; selectors may store its square.
const WIDEST: usize = 1 << 14;

fn shape(family: &Family, keys: &dyn KeySource, hidden_size: usize) -> Result<Shape, String> {
    let query_heads = keys.size("num_attention_heads")?;
    let kv_heads = if keys.has("num_key_value_heads") || !keys.may_lack_kv_heads(family) {
        keys.size("num_key_value_heads")?
    } else {
        query_heads
    };
    let head_dim = match family.head_dim {
        _ if keys.has("head_dim") => keys.size("head_dim")?,
        Some(head_dim) => head_dim,
        None if hidden_size.is_multiple_of(query_heads) => hidden_size / query_heads,
        None => {
            return Err(format!(
                "`{}` is {hidden_size}; expected a multiple of `{}` = {query_heads}, or `{}`",
                keys.name("hidden_size"),
                keys.name("num_attention_heads"),
                keys.name("head_dim"),
            ));
        }
    };
    if !head_dim.is_multiple_of(2) || head_dim > WIDEST {
        let name = keys.name("head_dim");
        return Err(format!("`{name}` is {head_dim}; expected an even number, at most {WIDEST}"));
    }
    let shape = Shape { query_heads, kv_heads, head_dim, value_dim: head_dim };
    shape.check().map_err(|error| error.to_string())?;
    Ok(shape)
}

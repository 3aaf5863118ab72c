//! Generation of texts from the logits of random models, with real tokenizers.

use std::path::{Path, PathBuf};

use proptest::prelude::*;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use serde_json::{Value, json};
use vattention_llm::{
    CompiledGrammar, Config, Error, GenerationParams, Grammar, SamplingParams, Stop, TextGenerator,
    Tokenizer, most_likely_token, score_token,
};

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name)
}

/// Tokenizer with its model's configuration.
struct Vocabulary {
    config: Config,
    tokenizer: Tokenizer,
}

impl Vocabulary {
    fn open(path: &Path) -> Self {
        let config = Config::open(path).unwrap();
        Self { tokenizer: Tokenizer::open(path, &config).unwrap(), config }
    }

    /// Byte-level BPE.
    fn bytes() -> Self {
        Self::open(&path("cli/tests/golden/chat.gguf"))
    }

    /// Words.
    fn recall() -> Self {
        Self::open(&path("models/recall"))
    }

    fn compile(&self, grammar: &Grammar) -> Result<CompiledGrammar, Error> {
        self.tokenizer.compile_grammar(grammar)
    }

    fn generator(&self, params: &GenerationParams) -> Result<TextGenerator<'_>, Error> {
        TextGenerator::new(params, &self.tokenizer, &self.config, &[1])
    }

    /// Generates from random logits.
    fn generate(&self, params: &GenerationParams, model_seed: u64) -> GeneratedText {
        let mut model = RandomModel::new(model_seed, self.config.vocab_size);
        let mut generator = self.generator(params).unwrap();
        let mut text = String::new();
        loop {
            let logits = model.logits();
            let token = generator.choose(&logits).unwrap();
            text += &token.text;
            let Some(stop) = token.stop else { continue };
            assert!(generator.choose(&logits).is_err(), "the generation has ended");
            text += &generator.finish().unwrap();
            assert_eq!(generator.finish().unwrap(), "");
            return GeneratedText { text, tokens: generator.tokens().to_vec(), stop };
        }
    }
}

#[derive(Debug, PartialEq)]
struct GeneratedText {
    text: String,
    tokens: Vec<u32>,
    stop: Stop,
}

/// Model whose logits do not depend on the tokens.
struct RandomModel {
    random: ChaCha8Rng,
    vocab_size: usize,
}

impl RandomModel {
    fn new(seed: u64, vocab_size: usize) -> Self {
        Self { random: ChaCha8Rng::seed_from_u64(seed), vocab_size }
    }

    fn logits(&mut self) -> Vec<f32> {
        let next = |_| (self.random.next_u32() % 8000) as f32 / 1000.0;
        (0..self.vocab_size).map(next).collect()
    }
}

fn params(max_tokens: usize) -> GenerationParams {
    GenerationParams { ignore_eos: true, ..GenerationParams::new(max_tokens) }
}

/// Random tokens are often parts of characters, or invalid.
#[test]
fn texts_equal_the_decoded_tokens() {
    for vocabulary in [Vocabulary::bytes(), Vocabulary::recall()] {
        let mut invalid = 0;
        for seed in 0..200 {
            let found = vocabulary.generate(&params(40), seed);
            assert_eq!((found.tokens.len(), &found.stop), (40, &Stop::Length));
            assert_eq!(found.text, vocabulary.tokenizer.decode(&found.tokens).unwrap());
            invalid += usize::from(found.text.contains(char::REPLACEMENT_CHARACTER));
        }
        assert_eq!(invalid > 0, vocabulary.config.vocab_size < 2000, "{invalid}");
    }
}

#[test]
fn equal_seeds_give_equal_texts() {
    let vocabulary = Vocabulary::bytes();
    let generate = |seed| {
        let sampling = SamplingParams { seed, temperature: 1.5, ..SamplingParams::default() };
        vocabulary.generate(&GenerationParams { sampling, ..params(30) }, 3)
    };
    assert_eq!(generate(5), generate(5));
    assert_ne!(generate(5), generate(6));
    let unlucky: Vec<u64> = (0..100).filter(|&seed| generate(seed) == generate(5)).collect();
    assert_eq!(unlucky, [5]);
}

#[test]
fn greedy_texts_follow_the_likeliest_token() {
    let vocabulary = Vocabulary::recall();
    let params = GenerationParams { sampling: SamplingParams::greedy(), ..params(20) };
    let mut model = RandomModel::new(1, vocabulary.config.vocab_size);
    let expected: Vec<u32> = (0..20).map(|_| most_likely_token(&model.logits()).unwrap()).collect();
    assert_eq!(vocabulary.generate(&params, 1).tokens, expected);
}

#[test]
fn choices_carry_the_models_log_probabilities() {
    let vocabulary = Vocabulary::recall();
    let sampling = SamplingParams {
        temperature: 0.3,
        top_k: 3,
        logit_bias: vec![(9, 50.0)],
        ..SamplingParams::default()
    };
    let params = GenerationParams { sampling, logprobs: 4, ..params(5) };
    let mut generator = vocabulary.generator(&params).unwrap();
    let mut model = RandomModel::new(1, vocabulary.config.vocab_size);
    for _ in 0..5 {
        let logits = model.logits();
        let found = generator.choose(&logits).unwrap().choice;
        assert_eq!(found, score_token(&logits, 9, 4), "token 9 is forced");
        assert_eq!(found.top.len(), 4);
    }
}

#[test]
fn stop_tokens_and_end_tokens_end_a_text() {
    let vocabulary = Vocabulary::recall();
    let force = |tokens: &[u32], params: &GenerationParams| {
        let mut generator = vocabulary.generator(params).unwrap();
        let mut text = String::new();
        for &token in tokens {
            let mut logits = vec![0.0; vocabulary.config.vocab_size];
            logits[token as usize] = 1e4;
            let chosen = generator.choose(&logits).unwrap();
            assert_eq!(chosen.choice.token, token);
            text += &chosen.text;
            if let Some(stop) = chosen.stop {
                text += &generator.finish().unwrap();
                return (text, generator.tokens().to_vec(), stop);
            }
        }
        panic!("no token ended the text");
    };
    let ending = GenerationParams { ignore_eos: false, ..params(9) };
    let special = "special magic".to_owned();
    let expected = |stop| (special.clone(), vec![9, 10], stop);
    assert_eq!(vocabulary.config.ends, [3]);
    assert_eq!(force(&[9, 10, 3], &ending), expected(Stop::End(3)));
    let stopping = GenerationParams { stop_token_ids: vec![12, 11], ..params(9) };
    assert_eq!(force(&[9, 10, 11], &stopping), expected(Stop::StopToken(11)));
    assert_eq!(force(&[9, 10], &params(2)), expected(Stop::Length));
    let ignored = ("special . magic".to_owned(), vec![9, 3, 10], Stop::Length);
    assert_eq!(
        force(&[9, 3, 10], &params(3)),
        ignored,
        "an end token that is ignored has its text"
    );
    let stop = vec!["no".into(), "l magic i".into()];
    let stopping = GenerationParams { stop, ..params(9) };
    let cut = ("specia".into(), vec![9, 10, 11], Stop::StopString("l magic i".into()));
    assert_eq!(force(&[9, 10, 11], &stopping), cut);
    let withheld = ("special magic".into(), vec![9, 10, 2], Stop::Length);
    assert_eq!(force(&[9, 10, 2], &GenerationParams { max_tokens: 3, ..stopping }), withheld);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// A stop string taken from a text ends a generation of the same tokens where it first ends.
    #[test]
    fn stop_strings_cut_the_text(
        seed in any::<u64>(), begin in 0..60_usize, length in 1..9_usize,
    ) {
        let vocabulary = Vocabulary::bytes();
        let whole = vocabulary.generate(&params(40), seed);
        let stop: String = whole.text.chars().skip(begin).take(length).collect();
        prop_assume!(!stop.is_empty());
        let stopping = GenerationParams { stop: vec![stop.clone()], ..params(40) };
        let found = vocabulary.generate(&stopping, seed);
        let expected = &whole.text[..whole.text.find(&stop).unwrap()];
        prop_assert_eq!(&found.text, expected);
        prop_assert!(whole.tokens.starts_with(&found.tokens));
        // The last character can be an incomplete one, which `finish` completes.
        if !stop.ends_with(char::REPLACEMENT_CHARACTER) {
            prop_assert_eq!(found.stop, Stop::StopString(stop));
        }
    }
}

#[test]
fn wrong_parameters_are_refused_by_name() {
    let vocabulary = Vocabulary::recall();
    let refuse = |field: &str, change: &dyn Fn(&mut GenerationParams)| {
        let mut params = params(1);
        change(&mut params);
        let error = vocabulary.generator(&params).err().unwrap();
        assert!(error.to_string().starts_with(&format!("{field}: ")), "{error}");
        assert!(error.to_string().contains("expected"), "{error}");
    };
    for wrong in [-0.1, f32::NAN, f32::INFINITY] {
        refuse("temperature", &|params| params.sampling.temperature = wrong);
        refuse("top_p", &|params| params.sampling.top_p = wrong);
        refuse("min_p", &|params| params.sampling.min_p = wrong);
        refuse("repetition_penalty", &|params| params.sampling.repetition_penalty = wrong);
        refuse("presence_penalty", &|params| params.sampling.presence_penalty = wrong - 2.0);
        refuse("frequency_penalty", &|params| params.sampling.frequency_penalty = 2.2 + wrong);
        refuse("logit_bias", &|params| params.sampling.logit_bias = vec![(0, wrong - 100.0)]);
    }
    refuse("top_p", &|params| params.sampling.top_p = 0.0);
    refuse("top_p", &|params| params.sampling.top_p = 1.01);
    refuse("min_p", &|params| params.sampling.min_p = 1.0);
    refuse("repetition_penalty", &|params| params.sampling.repetition_penalty = 0.0);
    refuse("logit_bias", &|params| params.sampling.logit_bias = vec![(2626, 0.0)]);
    refuse("stop", &|params| params.stop = vec!["a".into(), String::new()]);
    refuse("stop_token_ids", &|params| params.stop_token_ids = vec![2626]);
    let object = vocabulary.compile(&Grammar::JsonObject).unwrap();
    refuse("ignore_eos", &|params| params.grammar = Some(object.clone()));
    let mut endless = Vocabulary::recall();
    endless.config.ends.clear();
    let tokenizer = Tokenizer::open(&path("models/recall"), &endless.config).unwrap();
    let error = tokenizer.compile_grammar(&Grammar::JsonObject).unwrap_err();
    assert!(error.to_string().contains("no token that ends a text"), "{error}");
    let mut generator = vocabulary.generator(&self::params(1)).unwrap();
    assert!(generator.choose(&[0.0]).unwrap_err().to_string().starts_with("logits: there are 1;"));
}

fn grammar_params(grammar: &CompiledGrammar, seed: u64) -> GenerationParams {
    let sampling = SamplingParams { seed, temperature: 1.0, ..SamplingParams::default() };
    let grammar = Some(grammar.clone());
    GenerationParams { grammar, ignore_eos: false, sampling, ..params(400) }
}

/// Generates texts of a grammar until `count` of them are complete.
fn complete_texts(vocabulary: &Vocabulary, grammar: &Grammar, count: usize) -> Vec<String> {
    let grammar = vocabulary.compile(grammar).unwrap();
    let mut texts = Vec::new();
    for seed in 0..1000 {
        let found = vocabulary.generate(&grammar_params(&grammar, seed), seed);
        if matches!(found.stop, Stop::End(_)) {
            texts.push(found.text);
        }
        if texts.len() == count {
            return texts;
        }
    }
    panic!("{} of {count} texts are complete", texts.len());
}

/// The compiler follows references by recursion, which must not exhaust the stack.
#[test]
fn schemas_with_long_chains_of_references_are_refused() {
    let vocabulary = Vocabulary::bytes();
    let compile = |count: usize| {
        let mut definitions = serde_json::Map::new();
        for i in 0..count - 1 {
            let next = format!("#/$defs/d{}", i + 1);
            definitions.insert(format!("d{i}"), json!({"$ref": next}));
        }
        definitions.insert(format!("d{}", count - 1), json!({"type": "integer"}));
        let schema = json!({"$defs": definitions, "$ref": "#/$defs/d0"});
        vocabulary.compile(&Grammar::JsonSchema(schema))
    };
    compile(200).unwrap();
    let message = compile(1000).unwrap_err().to_string();
    assert!(message.starts_with("json_schema: 1000 `$ref`; expected at most 256"), "{message}");
}

#[test]
fn texts_follow_json_schemas() {
    let vocabulary = Vocabulary::bytes();
    let texts = |schema: Value| -> Vec<Value> {
        let texts = complete_texts(&vocabulary, &Grammar::JsonSchema(schema), 20);
        texts.iter().map(|text| serde_json::from_str(text).expect(text)).collect()
    };
    for value in texts(json!({"type": "integer", "minimum": 3, "maximum": 40})) {
        assert!((3..=40).contains(&value.as_i64().unwrap()), "{value}");
    }
    for value in texts(json!({"enum": ["red", "gröön", 7]})) {
        assert!([json!("red"), json!("gröön"), json!(7)].contains(&value), "{value}");
    }
    let person = json!({
        "type": "object",
        "properties": {
            "age": {"type": "integer", "minimum": 0, "maximum": 99},
            "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
        },
        "required": ["age", "tags"],
        "additionalProperties": false,
    });
    for value in texts(person) {
        assert_eq!(value.as_object().unwrap().len(), 2);
        assert!((0..=99).contains(&value["age"].as_i64().unwrap()), "{value}");
        let tags = value["tags"].as_array().unwrap();
        assert!(tags.len() <= 2 && tags.iter().all(|tag| tag == "a" || tag == "b"), "{value}");
    }
    let pattern = json!({"type": "string", "pattern": "^[0-9]{2}-[a-c]+$", "maxLength": 6});
    for value in texts(pattern) {
        let text = value.as_str().unwrap();
        assert!(text.len() <= 6 && text[..2].bytes().all(|byte| byte.is_ascii_digit()), "{text}");
        assert!(text[2..3] == *"-" && text[3..].bytes().all(|byte| b"abc".contains(&byte)));
    }
    let local = json!({"$ref": "#/$defs/flag", "$defs": {"flag": {"type": "boolean"}}});
    assert!(texts(local).iter().all(Value::is_boolean));
}

#[test]
fn texts_follow_other_grammars() {
    let vocabulary = Vocabulary::bytes();
    for text in complete_texts(&vocabulary, &Grammar::JsonObject, 10) {
        assert!(serde_json::from_str::<Value>(&text).expect(&text).is_object());
    }
    let regex = Grammar::Regex("(yes|no), [0-9]{1,3}/[a-c]+ é".into());
    let parsed = regex::Regex::new("^(yes|no), [0-9]{1,3}/[a-c]+ é$").unwrap();
    for text in complete_texts(&vocabulary, &regex, 20) {
        assert!(parsed.is_match(&text), "{text}");
    }
    let lark = "start: sum\nsum: NUMBER (\"+\" NUMBER)*\nNUMBER: /[0-9]{1,2}/\n";
    for text in complete_texts(&vocabulary, &Grammar::Lark(lark.into()), 20) {
        let is_number = |part: &str| (1..=2).contains(&part.len()) && part.parse::<u32>().is_ok();
        assert!(text.split('+').all(is_number), "{text}");
    }
}

#[test]
fn grammars_combine_with_sampling() {
    let vocabulary = Vocabulary::bytes();
    let grammar = vocabulary.compile(&Grammar::Regex("[ab]{3}".into())).unwrap();
    let mut params = grammar_params(&grammar, 0);
    params.sampling = SamplingParams { logit_bias: bias(&vocabulary, "a"), ..params.sampling };
    let found = vocabulary.generate(&params, 1);
    assert_eq!((found.text.as_str(), matches!(found.stop, Stop::End(_))), ("aaa", true));
    params.stop = vec!["aa".into()];
    let stopped = vocabulary.generate(&params, 1);
    assert_eq!((stopped.text.as_str(), stopped.stop), ("", Stop::StopString("aa".into())));
}

/// Bias that forces the token of a text.
fn bias(vocabulary: &Vocabulary, text: &str) -> Vec<(u32, f32)> {
    let tokens = vocabulary.tokenizer.next(text).unwrap();
    tokens.into_iter().map(|token| (token, 100.0)).collect()
}

#[test]
fn wrong_grammars_are_refused_by_name() {
    let vocabulary = Vocabulary::bytes();
    for (grammar, expected) in [
        (Grammar::JsonSchema(json!({"type": "integr"})), "json_schema: "),
        (Grammar::JsonSchema(json!({"type": "string", "pattern": "["})), "json_schema: "),
        (Grammar::JsonSchema(json!({"$ref": "http://example.org/x"})), "json_schema: "),
        (Grammar::JsonSchema(json!(3)), "json_schema: "),
        (Grammar::Lark("start: (".into()), "grammar: "),
        (Grammar::Lark("begin: \"a\"".into()), "grammar: "),
        (Grammar::Regex("(".into()), "regex: "),
    ] {
        let error = vocabulary.compile(&grammar).unwrap_err();
        assert!(matches!(error, Error::Grammar { .. }));
        let error = error.to_string();
        assert!(error.starts_with(expected) && !error.contains("non-verbose"), "{error}");
    }
    // No token of the vocabulary contains a brace.
    let words = Vocabulary::recall();
    let object = words.compile(&Grammar::JsonObject).unwrap();
    let mut generator = words.generator(&grammar_params(&object, 0)).unwrap();
    let error = generator.choose(&vec![0.0; words.config.vocab_size]).unwrap_err();
    assert!(matches!(error, Error::Grammar { .. }));
    let error = error.to_string();
    assert!(error.starts_with("json_object: no token of the model's vocabulary"), "{error}");
}

#[test]
fn generators_move_between_threads() {
    fn require_send<T: Send>(_: T) {}
    let vocabulary = Vocabulary::bytes();
    let object = vocabulary.compile(&Grammar::JsonObject).unwrap();
    require_send(vocabulary.generator(&grammar_params(&object, 0)).unwrap());
    require_send(object);
}

/// Generators of one compiled grammar take turns, and write what each writes alone.
#[test]
fn generators_share_a_compiled_grammar() {
    let vocabulary = Vocabulary::bytes();
    let schema = json!({"type": "array", "items": {"enum": ["a", 7]}, "minItems": 3});
    let grammar = vocabulary.compile(&Grammar::JsonSchema(schema)).unwrap();
    let params: Vec<_> = (0..4).map(|seed| grammar_params(&grammar, seed)).collect();
    let mut generators: Vec<_> =
        params.iter().map(|params| vocabulary.generator(params).unwrap()).collect();
    let mut models: Vec<_> =
        (0..4).map(|seed| RandomModel::new(seed, vocabulary.config.vocab_size)).collect();
    let mut running: Vec<usize> = (0..4).collect();
    while !running.is_empty() {
        running.retain(|&i| generators[i].choose(&models[i].logits()).unwrap().stop.is_none());
    }
    for (i, generator) in generators.iter().enumerate() {
        let alone = vocabulary.generate(&params[i], i as u64);
        assert_eq!(generator.tokens(), alone.tokens);
    }
}

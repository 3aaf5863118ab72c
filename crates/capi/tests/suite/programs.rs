//! Programs in C and C++, compiled with warnings as errors and run under the address sanitizer.

use ndarray::{Array3, ArrayView3, s};
use vattention::backends::Cpu;
use vattention::config::Loader;
use vattention::{Attention, Backend, Options, Output, Shape};
use vattention_capi::report::va_report;

use crate::compiler::{Linked, Toolchain, check_syntax, folder};

/// The examples, misuse and results share one installation, which takes seconds.
#[test]
fn programs_in_c_and_cpp_run() {
    let Some(toolchain) = Toolchain::new() else { return };
    for linked in [Linked::Shared, Linked::Static] {
        for example in ["examples/cache.c", "examples/engine.c", "examples/engine.cpp"] {
            toolchain.run(example, linked, &[]);
        }
        let printed = toolchain.run("tests/programs/misuse.c", linked, &[]);
        assert!(printed.ends_with("\n0 faults\n"), "{printed}");
    }
    for pipeline in ["priority", "vattention-oracle", "snapkv", "h2o", "dense"] {
        let toml = format!("extends = '{pipeline}'");
        let printed = toolchain.run("tests/programs/outputs.c", Linked::Shared, &[&toml]);
        let found: Vec<Line> = printed.lines().map(parse).collect();
        assert_eq!(found, compute(&toml), "{pipeline}");
    }
}

/// Functions with the code of docs/embedding.md, which only have to compile.
const DOCS: &str = r"
#include <stddef.h>
#include <vattention.h>

void check(va_status status);

void use_cache(size_t layer, size_t prompt, const void *prompt_keys, va_array values,
               va_array last_queries, float *out, va_report *reports, va_array key, va_array value,
               va_array query);
void use_pages(va_layer shape, size_t kv_head, va_options options, va_pipeline *head,
               const void *pool, size_t pool_elements, size_t kv_heads, const uint32_t *table,
               size_t table_len, size_t tokens, va_array last_queries, va_array query,
               va_output output);

void use_cache(size_t layer, size_t prompt, const void *prompt_keys, va_array values,
               va_array last_queries, float *out, va_report *reports, va_array key, va_array value,
               va_array query) {
CACHE
}

void use_pages(va_layer shape, size_t kv_head, va_options options, va_pipeline *head,
               const void *pool, size_t pool_elements, size_t kv_heads, const uint32_t *table,
               size_t table_len, size_t tokens, va_array last_queries, va_array query,
               va_output output) {
PAGES
}
";

#[test]
fn the_code_of_the_docs_compiles() {
    let page = std::fs::read_to_string(folder().join("../../docs/embedding.md")).unwrap();
    let mut blocks = page.split("```c\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let text = DOCS.replace("CACHE", blocks.next().unwrap());
    let text = text.replace("PAGES", blocks.next().unwrap());
    assert!(blocks.next().is_none(), "a block of C that is not compiled");
    check_syntax(&text);
}

const SHAPE: Shape = Shape { query_heads: 4, kv_heads: 2, head_dim: 32, value_dim: 64 };
const TOKENS: usize = 3000;
const PROMPT: usize = 2990;
const QUERIES: usize = 2;

/// Name, and numbers with their reports, of a line that the program prints.
type Line = (String, Vec<f64>);

fn parse(line: &str) -> Line {
    let (name, numbers) = line.split_once(' ').unwrap();
    (name.into(), numbers.split(' ').map(|number| number.parse().unwrap()).collect())
}

/// The same lines, from the library.
fn compute(toml: &str) -> Vec<Line> {
    let config = Loader::default().parse("pipeline", toml).unwrap();
    let options = Options {
        sequence: 5,
        scale: Some(0.5),
        soft_cap: Some(30.0),
        sink_logits: Some([0.5, -1.0, 2.0, 0.0].into()),
        ..Options::default()
    };
    let Shape { query_heads, kv_heads, head_dim, value_dim } = SHAPE;
    let keys = numbers((TOKENS, kv_heads, head_dim), 1, 0.0);
    let values = numbers((TOKENS, kv_heads, value_dim), 2, 0.5);
    let (keys, values) = (keys.permuted_axes([1, 0, 2]), values.permuted_axes([1, 0, 2]));
    let queries = numbers((query_heads, QUERIES, head_dim), 3, 0.0);
    let mut attention = Cpu::default().start(&config, 3, SHAPE, &options).unwrap();
    append(&mut *attention, keys.view(), values.view(), 0..PROMPT);
    attention.observe(queries.view()).unwrap();
    append(&mut *attention, keys.view(), values.view(), PROMPT..TOKENS);
    let cache = attention.attend(queries.view(), Some(&[TOKENS - 1, TOKENS])).unwrap();
    let fork = attention.fork(Some(6)).unwrap().attend(queries.view(), None).unwrap();
    vec![
        line("cache", &cache, 0..query_heads),
        line("fork", &fork, 0..query_heads),
        line("pages0", &cache, 0..2),
        line("pages1", &cache, 2..4),
    ]
}

fn append(
    attention: &mut dyn Attention,
    keys: ArrayView3<'_, f32>,
    values: ArrayView3<'_, f32>,
    tokens: std::ops::Range<usize>,
) {
    let of_tokens = s![.., tokens, ..];
    attention.append(keys.slice(of_tokens), values.slice(of_tokens)).unwrap();
}

/// Numbers of some query heads.
fn line(name: &str, output: &Output, heads: std::ops::Range<usize>) -> Line {
    let mut numbers: Vec<f64> = Vec::new();
    numbers.extend(output.out.slice(s![heads.clone(), .., ..]).iter().map(|&x| f64::from(x)));
    let logs = output.log_denominator.slice(s![heads.clone(), ..]);
    numbers.extend(logs.iter().map(|&x| f64::from(x)));
    for step in output.rows.chunks(SHAPE.query_heads) {
        for row in &step[heads.clone()] {
            let report = va_report::from(row);
            let parts = [report.kind, report.assumes, report.flags].map(f64::from);
            numbers.push(report.read as f64);
            numbers.extend(parts);
        }
    }
    (name.into(), numbers.into_iter().map(printed).collect())
}

/// A number as `printf` with nine digits prints it, which determines a number in f32.
fn printed(x: f64) -> f64 {
    format!("{x:.8e}").parse().unwrap()
}

/// The pseudo-random numbers of the program.
fn numbers(dim: (usize, usize, usize), seed: u32, mean: f32) -> Array3<f32> {
    let mut state = seed;
    Array3::from_shape_simple_fn(dim, || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0 + mean
    })
}

//! `verify` on every population.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;

use serde_json::{Value, json};
use vattention_testkit::adversarial::{AdversarialHead, sweep};

use crate::heads::{judge, layer, write};
use crate::{AttackOptions, folder};

/// Number of heads of each population.
const HEADS: u64 = 8;

pub(crate) fn run(options: &AttackOptions) {
    let path = folder().join("table.jsonl");
    let mut finished: BTreeMap<String, Value> = BTreeMap::new();
    for line in fs::read_to_string(&path).unwrap_or_default().lines() {
        let entry: Value = serde_json::from_str(line).unwrap();
        finished.insert(entry["cell"].as_str().unwrap().into(), entry);
    }
    let mut file = fs::OpenOptions::new().create(true).append(true).open(&path).unwrap();
    let populations: Vec<AdversarialHead> = sweep().into_iter().step_by(options.every).collect();
    println!(
        "population, dim, group, pipeline, samples: worst head, worst row, all, read, verdict"
    );
    let mut contradicted = 0;
    for (number, population) in populations.iter().enumerate() {
        let trace = folder().join("population.safetensors");
        let mut is_written = false;
        for config in &options.pipelines {
            let AdversarialHead { kind, head_dim, group, .. } = population;
            let name = config.display();
            let cell = format!("{kind:?}, {head_dim}, {group}, {name}, {}", options.trials);
            let entry = finished.entry(cell.clone()).or_insert_with(|| {
                if !is_written {
                    let head = |seed| AdversarialHead { seed, ..*population }.data();
                    write(&trace, layer(&(0..HEADS).map(head).collect::<Vec<_>>()));
                    is_written = true;
                }
                let pipeline = vattention::config::load(config).unwrap();
                let found = judge(&pipeline, 0, &trace, options.trials);
                let entry = json!({
                    "cell": cell, "worst_head": found.worst_head, "worst_row": found.worst_row,
                    "pooled": found.pooled, "read": found.read, "held": found.held,
                });
                writeln!(file, "{entry}").unwrap();
                entry
            });
            let number_at = |key: &str| entry[key].as_f64().unwrap();
            let held = entry["held"].as_bool().unwrap();
            contradicted += usize::from(!held);
            println!(
                "[{}/{}] {cell}: {:.4}, {:.4}, {:.4}, {:.1} %, {}",
                number + 1,
                populations.len(),
                number_at("worst_head"),
                number_at("worst_row"),
                number_at("pooled"),
                100.0 * number_at("read"),
                if held { "held" } else { "CONTRADICTED" },
            );
        }
    }
    println!("promises contradicted: {contradicted}");
}

//! `--backend cuda`: with a GPU, commands run; without one, the error names the reason.

use std::process::Output;

use crate::world::{expect_code, vattention};
use serde_json::Value;

const TRACE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../data/smollm2.safetensors");
const HYBRID: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../configs/hybrid.toml");

fn on_cuda(args: &[&str]) -> Output {
    vattention(&[args, &["--backend", "cuda"]].concat())
}

/// Returns the backend's entry in `list --json`.
fn entry() -> Value {
    let list = vattention("list --json");
    let list: Value = serde_json::from_slice(&list.stdout).unwrap();
    let backends = list["backends"].as_array().unwrap();
    backends.iter().find(|backend| backend["name"] == "cuda").unwrap().clone()
}

#[test]
fn every_command_runs_on_cuda_or_names_the_reason() {
    let commands: [&[&str]; 4] = [
        &["compare", HYBRID, "--trace", TRACE, "--queries", "1"],
        &["study", "sensitivity", "--trace", TRACE, "--queries", "1"],
        &["study", "pareto", HYBRID, "--trace", TRACE, "--queries", "1"],
        &["bench", "--tokens", "512", "--seconds", "0.01", "--cold-bytes", "1048576"],
    ];
    let available = entry()["available"].as_bool().unwrap();
    for command in commands {
        let output = on_cuda(command);
        if available {
            expect_code(&output, 0);
            continue;
        }
        let said = expect_code(&output, 2);
        assert!(output.stdout.is_empty(), "{command:?}");
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(said.starts_with("error: --backend: backend cuda: "), "{said}");
        let reasons = ["no NVIDIA driver", "no GPU", "the NVIDIA driver: ", "capability", "NVRTC"];
        assert!(reasons.iter().any(|reason| said.contains(reason)), "{said}");
    }
}

#[test]
fn the_list_names_the_reason_why_cuda_cannot_run() {
    let shown = String::from_utf8(vattention("list").stdout).unwrap();
    let line = shown.lines().find(|line| line.starts_with("  cuda ")).unwrap();
    assert!(line.contains(entry()["summary"].as_str().unwrap()));
    assert_eq!(line.contains("not here: backend cuda: "), entry()["available"] == false, "{line}");
    let cpu = shown.lines().find(|line| line.starts_with("  cpu ")).unwrap();
    assert!(!cpu.contains("not here"), "{cpu}");
}

//! Text of `vattention --version`: the version, the commit, and whether models are built in.

use std::env;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let version = env::var("CARGO_PKG_VERSION").expect("cargo sets it");
    let models = if env::var_os("CARGO_FEATURE_MODELS").is_some() { "with" } else { "without" };
    let commit = commit().map(|commit| format!("{commit}, ")).unwrap_or_default();
    println!("cargo:rustc-env=VATTENTION_VERSION={version} ({commit}{models} models)");
}

/// Returns the commit of this repository; `None` in a package or inside another repository.
fn commit() -> Option<String> {
    if git(&["rev-parse", "--show-prefix"])? != "cli/" {
        return None;
    }
    println!("cargo:rerun-if-changed={}", git(&["rev-parse", "--git-path", "logs/HEAD"])?);
    git(&["rev-parse", "--short=10", "HEAD"])
}

fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git").args(args).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

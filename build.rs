//! Lists the built-in pipelines: the files of the folder `configs` that name no file of weights.

use std::path::{Path, PathBuf};
use std::{env, fs};

fn main() {
    println!("cargo:rerun-if-changed=configs");
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let entries = fs::read_dir(root.join("configs")).expect("the folder is part of the package");
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    let pipelines: String = paths.iter().filter_map(|path| registration(path)).collect();
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    fs::write(out.join("pipelines.rs"), pipelines).expect("cargo makes the folder");
}

/// The code that registers a pipeline file, if it is one that needs no weights.
fn registration(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_str()?.strip_suffix(".toml")?;
    let text = fs::read_to_string(path).ok()?;
    (!text.contains("\"../weights/")).then(|| {
        format!("inventory::submit! {{ NamedPipeline {{ name: {name:?}, text: {text:?} }} }}\n")
    })
}

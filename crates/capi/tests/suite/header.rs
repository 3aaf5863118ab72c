//! The committed header is that of the source.

use crate::compiler::folder;

/// Environment variable with which the test writes the header instead of comparing it.
const UPDATE: &str = "VATTENTION_UPDATE_HEADER";

/// Source files with items of the header, in the order of the header.
const SOURCES: [&str; 12] = [
    "status",
    "array",
    "layer",
    "workers",
    "options",
    "report",
    "output",
    "needs",
    "border",
    "attention",
    "batch",
    "pipeline",
];

fn generate() -> String {
    let config = cbindgen::Config::from_file(folder().join("cbindgen.toml")).unwrap();
    let mut builder = cbindgen::Builder::new().with_config(config);
    for source in SOURCES.iter().chain(&["pages"]) {
        builder = builder.with_src(folder().join(format!("src/{source}.rs")));
    }
    let mut header = Vec::new();
    builder.generate().unwrap().write(&mut header);
    String::from_utf8(header).unwrap()
}

#[test]
fn the_header_is_that_of_the_source() {
    let (path, generated) = (folder().join("include/vattention.h"), generate());
    if std::env::var_os(UPDATE).is_some() {
        std::fs::write(&path, &generated).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap();
    assert!(
        committed == generated,
        "include/vattention.h is not that of the source: run `{UPDATE}=1 cargo test -p \
         vattention-capi --test suite header`"
    );
}

/// Each function of the interface is in the header: a source file may have been forgotten above.
#[test]
fn the_header_has_all_functions() {
    let header = generate();
    for entry in std::fs::read_dir(folder().join("src")).unwrap() {
        let path = entry.unwrap().path();
        let Ok(text) = std::fs::read_to_string(&path) else { continue };
        for function in text.split("extern \"C\" fn ").skip(1) {
            let name = function.split('(').next().unwrap();
            if name.starts_with("va_") {
                assert!(header.contains(&format!("{name}(")), "{name} of {}", path.display());
            }
        }
    }
}

#[test]
fn the_pkg_config_file_has_the_version() {
    let text = std::fs::read_to_string(folder().join("vattention.pc")).unwrap();
    assert!(text.contains(&format!("\nVersion: {}\n", env!("CARGO_PKG_VERSION"))), "{text}");
}

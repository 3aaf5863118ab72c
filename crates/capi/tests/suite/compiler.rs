//! The C and C++ compilers, and the library as programs find it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;
use vattention_testkit::or_skip;

/// Environment variable that turns skips of tests without a compiler into failures.
const REQUIRE: &str = "VATTENTION_REQUIRE_CC";

/// Folder of this crate.
pub(crate) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

/// Folder with the libraries that were built with this test.
fn libraries() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().to_owned()
}

/// Kind of library that a program is linked with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Linked {
    Shared,
    Static,
}

/// Compilers, and a folder in which install.sh has installed the library.
pub(crate) struct Toolchain {
    prefix: TempDir,
    /// Options of the address sanitizer, if the compiler has one.
    sanitizer: Vec<&'static str>,
}

impl Toolchain {
    /// Installs the library, if there are compilers.
    pub(crate) fn new() -> Option<Self> {
        or_skip(find("CC", "cc").and_then(|_| find("CXX", "c++")), REQUIRE)?;
        let prefix = tempfile::tempdir().unwrap();
        let mut install = Command::new(folder().join("install.sh"));
        run(install.arg(prefix.path()).arg(libraries()));
        let sanitizer = vec!["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"];
        let mut toolchain = Self { prefix, sanitizer };
        let source = toolchain.prefix.path().join("probe.c");
        std::fs::write(&source, "int main(void) { return 0; }\n").unwrap();
        let probe = toolchain.command(&source, &toolchain.program("probe"), Linked::Shared);
        let probe = { probe }.output().unwrap();
        let found = if probe.status.success() { Ok(()) } else { Err("no address sanitizer") };
        if or_skip(found, REQUIRE).is_none() {
            toolchain.sanitizer.clear();
        }
        Some(toolchain)
    }

    fn program(&self, name: &str) -> PathBuf {
        self.prefix.path().join(name)
    }

    /// Command that compiles a program.
    fn command(&self, source: &Path, program: &Path, linked: Linked) -> Command {
        let is_c = source.extension().is_some_and(|extension| extension == "c");
        let (compiler, standard) = if is_c {
            (find("CC", "cc").unwrap(), "-std=c99")
        } else {
            (find("CXX", "c++").unwrap(), "-std=c++17")
        };
        let (include, lib) = (self.prefix.path().join("include"), self.prefix.path().join("lib"));
        let mut command = Command::new(compiler);
        command.args([standard, "-D_POSIX_C_SOURCE=200809L", "-O1", "-g"]);
        command.args(["-Wall", "-Wextra", "-Wpedantic", "-Werror"]).args(&self.sanitizer);
        command.arg("-I").arg(include).arg(source).arg("-o").arg(program);
        match linked {
            Linked::Shared => {
                command.arg("-L").arg(&lib).arg("-lvattention_capi");
                command.arg(format!("-Wl,-rpath,{}", lib.display()));
            }
            Linked::Static => {
                command.arg(lib.join("libvattention_capi.a"));
            }
        }
        command.args(["-lm", "-ldl", "-lpthread"]);
        command
    }

    /// Compiles a program with warnings as errors, runs it under the sanitizer, and returns its
    /// output.
    pub(crate) fn run(&self, source: &str, linked: Linked, arguments: &[&str]) -> String {
        let source = folder().join(source);
        let program = self.program(&format!("program-{linked:?}"));
        run(&mut self.command(&source, &program, linked));
        run(Command::new(program).args(arguments))
    }
}

/// Compiles a text in C, if there is a compiler.
pub(crate) fn check_syntax(text: &str) {
    let Some(compiler) = or_skip(find("CC", "cc"), REQUIRE) else { return };
    let temporary = tempfile::tempdir().unwrap();
    let source = temporary.path().join("source.c");
    std::fs::write(&source, text).unwrap();
    let mut command = Command::new(compiler);
    command.args(["-std=c99", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-I"]);
    run(command.arg(folder().join("include")).arg(source));
}

/// Name of a compiler in the environment, or its usual name, if it is installed.
fn find(variable: &str, usual: &str) -> Result<OsString, String> {
    let name = std::env::var_os(variable).unwrap_or_else(|| usual.into());
    match Command::new(&name).arg("--version").output() {
        Ok(_) => Ok(name),
        Err(error) => Err(format!("{}: {error}", name.display())),
    }
}

/// Runs a command, and returns what it prints.
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (printed, errors) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{command:?}\n{printed}{errors}");
    printed
}

//! Compiles programs to shared libraries.

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use vattention_core::Result;
use vattention_cuda::Program;

use crate::fail;

/// Definitions of CUDA's functions for the kernels.
const EMULATION: &str = include_str!("emulation.h");

const FLAGS: [&str; 7] = [
    "-std=c++17",
    "-O2",
    "-g1",
    "-shared",
    "-fPIC",
    "-ffp-contract=off",
    // Some systems turn it on, and it reports a jump between stacks as a fault.
    "-U_FORTIFY_SOURCE",
];

const SANITIZE: [&str; 3] = [
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
    // Shared variables have a section of their own, which the sanitizer skips by default.
    "-fsanitize-sections=cuda_shared",
];

/// The C++ compiler that `CXX` names, or `c++`.
pub(crate) fn compiler_command() -> String {
    std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned())
}

/// A C++ compiler, and the folder of the compiled libraries.
#[derive(Debug)]
pub(crate) struct HostCompiler {
    command: String,
    /// Output of its `--version`.
    version: String,
    flags: Vec<&'static str>,
    folder: PathBuf,
}

impl HostCompiler {
    /// Finds the compiler of this machine. Libraries go into a folder beside the running program,
    /// in the build folder.
    pub(crate) fn find(sanitized: bool) -> Result<Self> {
        let command = compiler_command();
        let version = Command::new(&command).arg("--version").output();
        let version =
            version.map_err(|error| fail(format!("no C++ compiler, {command}: {error}")))?;
        let program = std::env::current_exe().map_err(|error| fail(error.to_string()))?;
        let folder = program.parent().unwrap_or(Path::new(".")).join("emulated");
        let sanitize = if sanitized { &SANITIZE[..] } else { &[] };
        let flags = FLAGS.iter().chain(sanitize).copied().collect();
        let version = String::from_utf8_lossy(&version.stdout).into_owned();
        Ok(Self { command, version, flags, folder })
    }

    pub(crate) fn version(&self) -> &str {
        self.version.lines().next().unwrap_or(&self.command)
    }

    /// Path of a program's library, which is compiled unless it exists.
    pub(crate) fn library(&self, program: &Program) -> Result<PathBuf> {
        let text = format!("{EMULATION}\n{}", program.text());
        let mut hasher = DefaultHasher::new();
        (&text, &self.version, &self.flags).hash(&mut hasher);
        let name = format!("{}-{:016x}", program.source.name, hasher.finish());
        let library = self.folder.join(format!("{name}.so"));
        let explain = |error: io::Error| fail(format!("{}: {error}", library.display()));
        fs::create_dir_all(&self.folder).map_err(explain)?;
        // A second caller, in this process or another, waits here and finds the library compiled.
        let lock = File::create(self.folder.join(format!("{name}.lock"))).map_err(explain)?;
        lock.lock().map_err(explain)?;
        if !library.exists() {
            let source = self.folder.join(format!("{name}.cpp"));
            fs::write(&source, text).map_err(explain)?;
            let unfinished = self.folder.join(format!("{name}.tmp"));
            self.compile(&source, &unfinished)?;
            fs::rename(&unfinished, &library).map_err(explain)?;
        }
        Ok(library)
    }

    fn compile(&self, source: &Path, library: &Path) -> Result<()> {
        let mut command = Command::new(&self.command);
        command.args(&self.flags).arg(source).arg("-o").arg(library);
        let output = command.output().map_err(|error| fail(format!("{command:?}: {error}")))?;
        if output.status.success() {
            return Ok(());
        }
        Err(fail(format!("{}: {}", source.display(), String::from_utf8_lossy(&output.stderr))))
    }
}

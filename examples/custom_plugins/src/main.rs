//! The `vattention` command, with these plug-ins in it.

use custom_plugins as _; // Linking it makes it known.

fn main() -> std::process::ExitCode {
    vattention_cli::main()
}

//! The `vattention` command with the plug-ins of this crate.

use custom_plugins as _; // Linking the crate registers its plug-ins.

fn main() -> std::process::ExitCode {
    vattention_cli::main()
}

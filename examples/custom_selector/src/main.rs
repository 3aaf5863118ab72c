//! The `vattention` command, with `every-nth` in it.

use custom_selector as _; // Linking it makes it known.

fn main() -> std::process::ExitCode {
    vattention_cli::main()
}

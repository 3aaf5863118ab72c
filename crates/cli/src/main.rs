//! The `vattention` command.

fn main() -> std::process::ExitCode {
    vattention_cli::main()
}

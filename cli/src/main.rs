//! The `vattention` command.

/// Steps ask for an element of each token, and indexes are large: this allocator keeps memory for the next step and asks for huge pages, which
/// glibc's does not.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    vattention_cli::main()
}

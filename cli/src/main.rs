//! The `vattention` command.

/// Steps allocate buffers with an element per token, and indexes are large. Unlike glibc's, this
/// allocator keeps freed memory for the next step and uses huge pages.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    vattention_cli::main()
}

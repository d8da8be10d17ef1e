//! The `lockmod` command.

fn main() -> std::process::ExitCode {
    lockmod::cli::main()
}

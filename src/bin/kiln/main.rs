//! The `kiln` command: the tool of those who work with IR files.
//!
//! It parses arguments, calls the library, and prints. Exit code 0 is fine, 1 are diagnostics (on stderr, with the line of the file), 2 is
//! wrong usage.

mod graph;
mod ops;
mod report;
mod run;

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};
use kiln_ir::Code;

/// Reads, checks, rewrites and runs IR files of Kiln.
#[derive(Parser)]
#[command(name = "kiln", version, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Checks IR files: syntax, names, types.
    Check {
        /// The files; `-` is standard input.
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// Prints an IR file in the one printed form: values renumbered, comments gone.
    Fmt {
        /// The file; `-` is standard input.
        file: PathBuf,
        /// Writes the file instead.
        #[arg(long, conflicts_with = "check")]
        write: bool,
        /// Prints nothing; exit code 1 where the file is not in printed form.
        #[arg(long)]
        check: bool,
    },
    /// Prints the graph after the passes.
    Opt {
        /// The file; `-` is standard input.
        file: PathBuf,
        /// Runs these passes, in this order, instead of all.
        #[arg(long = "pass", value_name = "PASS", value_parser = graph::pass_names())]
        passes: Vec<String>,
    },
    /// Runs a graph once: inputs from `.npy` files, outputs to `.npy` files. A folder that `verify()` has written is run on its own inputs, and
    /// shown beside the reference.
    Run {
        /// The file; `-` is standard input.
        file: PathBuf,
        /// The data of an input.
        #[arg(long = "input", value_name = "NAME=FILE.npy")]
        inputs: Vec<String>,
        /// Moves the whole graph to this backend first.
        #[arg(long)]
        backend: Option<run::Place>,
        /// The folder that outputs are written to, each as `NAME.npy`.
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
        /// Prints kernels, bytes and peak memory.
        #[arg(long)]
        report: bool,
        /// Compiles a kernel of this number wrongly: tests of what finds mistakes need one.
        #[arg(long, value_name = "LAUNCH", hide = true)]
        fault: Option<usize>,
    },
    /// Prints what a graph compiles to: kernels, bytes, the reason for every value in memory. Nothing runs.
    Report {
        /// The file; `-` is standard input.
        file: PathBuf,
        /// Moves the whole graph to this backend first.
        #[arg(long)]
        backend: Option<run::Place>,
        /// As JSON.
        #[arg(long, conflicts_with = "html")]
        json: bool,
        /// Writes a page for a browser instead.
        #[arg(long, value_name = "FILE.html")]
        html: Option<PathBuf>,
    },
    /// Prints the graph with gradients as further outputs, named `grad.NAME`.
    Grad {
        /// The file; `-` is standard input.
        file: PathBuf,
        /// The output whose gradient is taken: one float.
        #[arg(long, value_name = "OUTPUT")]
        of: String,
        /// With regard to which inputs or outputs: names, separated by commas.
        #[arg(long, value_name = "NAMES", required = true)]
        wrt: Vec<String>,
    },
    /// Prints the table of all ops.
    Ops {
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Prints the page of an error code, such as K0201.
    Explain {
        /// The code; without it, all codes are listed.
        #[arg(value_parser = code)]
        code: Option<Code>,
    },
}

fn code(text: &str) -> Result<Code, String> {
    text.parse().map_err(|()| {
        let known: Vec<&str> = Code::ALL.iter().map(|code| code.name()).collect();
        format!("there is no such code; known are {}", known.join(", "))
    })
}

/// A code's page, without what serves its snippets as tests only.
fn page(code: Code) -> String {
    let shown = code.explain().lines().filter(|line| !line.starts_with("# ") || line.starts_with(&format!("# {code}")));
    let plain = |line| match line {
        "```rust,no_run" => "```rust",
        "```kiln-fails" => "```kiln",
        line => line,
    };
    shown.flat_map(|line| [plain(line), "\n"]).collect()
}

/// Every code with its summary, one a line.
fn pages() -> String {
    Code::ALL.iter().map(|code| format!("{code}  {}\n", code.summary())).collect()
}

/// What a command prints, or the diagnostics, rendered with colours: the stream takes them away where no terminal shows them.
type Outcome = Result<String, String>;

fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        Command::Check { files } => graph::check(&files),
        Command::Fmt { file, write, check } => graph::format(&file, graph::Formatted::from_flags(write, check)),
        Command::Opt { file, passes } => graph::optimize(&file, &passes),
        Command::Run { file, fault, .. } if file.is_dir() => run::reproduce(&file, fault),
        Command::Run { out: None, .. } => missing("--out <DIR>"),
        Command::Run { file, inputs, backend, out: Some(out), report, .. } => {
            let reporting = if report { run::Reporting::Printed } else { run::Reporting::Silent };
            run::run(&file, &inputs, backend, &out, reporting)
        }
        Command::Report { file, backend, json, html } => {
            report::report(&file, backend, &report::Shape::from_flags(json, html))
        }
        Command::Grad { file, of, wrt } => graph::differentiate(&file, &of, &wrt),
        Command::Ops { json } => Ok(if json { ops::json() } else { ops::table() }),
        Command::Explain { code } => Ok(code.map_or_else(pages, page)),
    };
    match outcome {
        Ok(text) => written(io::stdout().write_all(text.as_bytes()), 0),
        Err(text) => written(anstream::stderr().write_all(text.as_bytes()), 1),
    }
}

/// Ends with the usage: an argument is missing.
fn missing(argument: &str) -> ! {
    let message = format!("the following required arguments were not provided:\n  {argument}\n");
    Arguments::command().error(ErrorKind::MissingRequiredArgument, message).exit()
}

/// The exit code; a reader who has gone away (`kiln ops | head`) is no failure.
fn written(result: io::Result<()>, code: u8) -> ExitCode {
    match result {
        Ok(()) => ExitCode::from(code),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::from(code),
        Err(_) => ExitCode::FAILURE,
    }
}

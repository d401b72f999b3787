//! Mistakes as users see them, with line numbers that do not change when something is added above: they count from the line of the call.

use std::fmt::Write;
use std::panic::Location;

use kiln_capture::{CaptureDevice, Scope};
use kiln_ir::{Backend, Diagnostics};

/// A device that records for the CPU.
pub(crate) fn cpu() -> CaptureDevice {
    CaptureDevice::new(Backend::Cpu)
}

/// The mistakes that a scope on the CPU ends with.
#[track_caller]
pub(crate) fn report(body: impl FnOnce(&Scope)) -> String {
    let base = Location::caller();
    let errors = cpu().capture_scope(body).map(|_| ()).expect_err("a mistake was made");
    rendered(&errors, base.file(), base.line())
}

/// The mistakes of a result, with line numbers from `base`, a line of the caller's file.
#[track_caller]
pub(crate) fn shown<T>(result: Result<T, Diagnostics>, base: u32) -> String {
    match result {
        Ok(_) => "no mistake".to_owned(),
        Err(errors) => rendered(&errors, Location::caller().file(), base),
    }
}

/// The text with source lines, and line numbers from `base`.
fn rendered(errors: &Diagnostics, file: &str, base: u32) -> String {
    let text = errors.render(&|file| std::fs::read_to_string(file).ok());
    // Whatever else this build has: the text is the same.
    let text = text.replace("NdArray, Cpu, Wgpu", "NdArray, Cpu");
    let mut shown = String::new();
    for line in text.lines() {
        writeln!(shown, "{}", relative(line, file, base)).expect("a string takes everything");
    }
    shown
}

fn relative(line: &str, file: &str, base: u32) -> String {
    let number = |text: &str| -> Option<(u32, usize)> {
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        Some((text[..digits].parse().ok()?, digits))
    };
    // The gutter is as wide as the longest line number: here that of three digits, whatever they are.
    if let (Some((found, digits)), true) = (number(line), line.contains(" | ")) {
        return format!("{:<4}{}", found - base, line[digits..].trim_start());
    }
    let line = match line.trim_start() {
        bare if bare.starts_with("-->") => format!("   {bare}"),
        bare if bare.starts_with('|') => format!("    {bare}"),
        _ => line.to_owned(),
    };
    let file = format!("{file}:");
    let mut parts = line.split(&file);
    let mut shown = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (found, digits) = number(part).expect("a line number follows the file");
        write!(shown, "{file}+{}{}", found - base, &part[digits..]).expect("a string takes everything");
    }
    shown
}
